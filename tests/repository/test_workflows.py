"""What GitHub runs is what `.ci/run` runs: the same targets of the Makefile, which are all there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from longspan.vllm import ADAPTERS

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def targets(text: str) -> set[str]:
    """What `make` is called with."""
    calls = re.findall(r"(?:^|[\s;&])make((?: +[a-z][a-z-]*)+)", text)
    return {target for call in calls for target in call.split()}


def in_makefile() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def jobs(path: Path) -> dict:
    return yaml.safe_load(path.read_text())["jobs"]


def steps(path: Path) -> list[dict]:
    return [step for job in jobs(path).values() for step in job.get("steps", [])]


def run_by(path: Path) -> set[str]:
    return {target for step in steps(path) for target in targets(step.get("run", ""))}


def test_the_parser_sees_targets():
    assert targets("run: make lint\ncd x && make wheel test-long\n# makes nothing; remake it") == {
        "lint", "wheel", "test-long",
    }  # fmt: skip
    assert {"help", "test", "lint", "clean"} <= in_makefile()


def test_every_target_that_is_named_is_there():
    named = {path.name: run_by(path) for path in WORKFLOWS}
    named[".ci/run"] = targets((ROOT / ".ci" / "run").read_text())
    for document in ("CONTRIBUTING.md", "README.md", ".github/pull_request_template.md"):
        named[document] = set(re.findall(r"(?:\$ |`)make ([a-z-]+)", (ROOT / document).read_text()))
    named["make help"] = set(re.findall('echo "make ([a-z-]+) ', (ROOT / "Makefile").read_text()))
    assert {where: names - in_makefile() for where, names in named.items() if names - in_makefile()} == {}
    assert len(named["make help"]) > 10 and {"demo", "test"} <= named["make help"]


def test_github_runs_what_the_gate_runs():
    gate = targets((ROOT / ".ci" / "run").read_text())
    with_each_push = [path for path in WORKFLOWS if path.name != "vllm.yml"]
    assert gate == set().union(*map(run_by, with_each_push)) and {"lint", "test", "test-long", "wheel-test"} <= gate


def test_vllm_is_tested_every_week_on_each_release_that_is_known():
    path = ROOT / ".github" / "workflows" / "vllm.yml"
    body, (job,) = yaml.safe_load(path.read_text()), jobs(path).values()
    pinned = sorted(
        file.stem.removeprefix("requirements-") for file in (ROOT / "tests" / "vllm").glob("requirements-*.txt")
    )
    assert "schedule" in body[True] and run_by(path) == {"test-vllm", "vllm-demo"}  # YAML 1.1 reads `on` as true
    assert sorted(job["strategy"]["matrix"]["release"]) == pinned and len(pinned) == 3
    assert all("VLLM_RELEASE=${{ matrix.release }}" in step["run"] for step in job["steps"] if "run" in step)
    assert {release.rpartition(".")[0] for release in pinned} == set(ADAPTERS)


def test_every_system_and_python_that_is_promised_is_tested():
    matrix = jobs(ROOT / ".github" / "workflows" / "test.yml")["test"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest"]
    classified = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert matrix["python"] == classified and PROJECT["requires-python"] == f">={classified[0]}"


PUBLISHING = {
    "release.yml": {"publish": {"id-token": "write"}},
    "docs.yml": {"publish": {"id-token": "write", "pages": "write"}},
}


def test_a_job_may_only_read_unless_it_publishes():
    for path in WORKFLOWS:
        body = yaml.safe_load(path.read_text())
        assert body["permissions"] == {"contents": "read"}, path.name
        more = {name: job["permissions"] for name, job in body["jobs"].items() if "permissions" in job}
        assert more == PUBLISHING.get(path.name, {})
        assert all("timeout-minutes" in job or "uses" in job for job in body["jobs"].values()), path.name
        assert "secrets." not in path.read_text() and "pull_request_target" not in path.read_text()


def test_an_action_is_one_commit():
    """A tag can be moved to other code; a commit cannot. The version behind it is what dependabot reads."""
    for path in WORKFLOWS:
        used = re.findall(r"^ *(?:- )?uses: (.+)$", path.read_text(), re.MULTILINE)
        others = [use for use in used if not use.startswith("./")]
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use) for use in others), others


def test_only_a_tag_that_passed_is_published():
    path = ROOT / ".github" / "workflows" / "release.yml"
    body = yaml.safe_load(path.read_text())
    assert body[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true
    publish = body["jobs"]["publish"]
    assert body["jobs"][publish["needs"]]["uses"] == "./.github/workflows/wheel.yml"
    assert publish["environment"]["name"] == "pypi"
    last = publish["steps"][-1]
    assert last["uses"].startswith("pypa/gh-action-pypi-publish@") and "with" not in last
    uploaded = [step for step in steps(path.with_name("wheel.yml")) if "upload-artifact" in step.get("uses", "")]
    assert [step["with"]["name"] for step in uploaded] == [publish["steps"][0]["with"]["name"]]


def test_the_forms_ask_for_what_is_needed():
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert set(forms) == {"bug", "config", "method", "refused-model"}
    for name, form in forms.items():
        if name != "config":
            identifiers = [field["id"] for field in form["body"]]
            assert len(identifiers) == len(set(identifiers)) and form["name"] and form["description"]
            assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_the_recipe_is_the_check_list():
    """What CONTRIBUTING names in the recipe of a method is what a pull request is asked for."""
    template = (ROOT / ".github" / "pull_request_template.md").read_text()
    recipe = (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding a method")[2].partition("## A task")[0]
    words = "`name`|`paper`|`check`|`defaults|`check_window|`selection`|`positions`|`plain_queries|`warnings|`METHODS`"
    for word in [*words.split("|"), "`tests/support/variants.py`", "`tests/support/toy_method.py`", "`oracle/`"]:
        assert word in recipe and word in template, word


@pytest.mark.parametrize("name", ["ruff", "mypy"])
def test_hooks_run_what_lint_runs(name):
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"] for repo in hooks for hook in repo["hooks"] if "entry" in hook]
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert any(entry.startswith(f".venv/bin/{name}") for entry in entries) and f"$(BIN)/{name}" in lint
