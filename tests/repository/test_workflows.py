"""What GitHub runs: actions pinned to a commit, few rights, and only what passed is published."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
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
        assert "secrets." not in path.read_text() and "pull_request_target" not in path.read_text()


def test_an_action_is_one_commit():
    """A tag can be moved to other code; a commit cannot. The version behind it is what dependabot reads."""
    for path in WORKFLOWS:
        used = re.findall(r"^ *(?:- )?uses: (.+)$", path.read_text(), re.MULTILINE)
        others = [use for use in used if not use.startswith("./")]
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use) for use in others), others


def test_only_a_tag_that_passed_is_published():
    body = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert body[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true
    publish = body["jobs"]["publish"]
    assert publish["needs"] == ["wheel", "platform"]
    assert body["jobs"]["wheel"]["uses"] == "./.github/workflows/wheel.yml"
    steps = [step.get("run", "") for step in body["jobs"]["platform"]["steps"]]
    assert any("cibuildwheel --output-dir dist" in step for step in steps)
    assert any("tests/repository/test_platform_wheel.py" in step for step in steps)
    assert publish["environment"]["name"] == "pypi"
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
