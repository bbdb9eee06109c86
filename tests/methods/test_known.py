"""Methods of other packages, by the entry points that they are installed with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import copy
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from longspan.errors import LongspanError
from longspan.methods import METHODS, StreamingLLM
from longspan.methods.known import GROUP, KnownMethods
from support.packages import put_package

EXAMPLE = Path(__file__).parents[2] / "examples" / "method_of_your_own.py"


@pytest.fixture
def install(tmp_path, monkeypatch):
    return partial(put_package, tmp_path, monkeypatch)


def test_a_package_s_method_is_known_by_its_name(install, tmp_path):
    """Also where the package is imported first: longspan, which it imports, does not import it meanwhile."""
    source = EXAMPLE.read_text().partition("\n\nmodel, tokenizer")[0] + "\nlongspan.METHODS\n"
    folder = install("bounded-extend", "toy_bounded:BoundedExtend", source)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])

    def ran(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, *args], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = json.loads(ran("-m", "longspan", "methods", "--json"))
    assert [row["name"] for row in listed] == [*METHODS, "bounded-extend"]
    assert listed[-1]["parameters"]["recent"] == 2048
    code = """if True:
        import toy_bounded, longspan
        model, tokenizer = longspan.load_bundled()
        path = __import__("sys").argv[1]
        longspan.read(model, tokenizer, "Some words. " * 300, method="bounded-extend:group=16", out=path)
        print(longspan.Document.open(path, longspan.load_bundled()[0], tokenizer).attachment().attender.method)
    """
    assert "BoundedExtend" in (opened := ran("-c", code, str(tmp_path / "a.longspan"))) and "group=16" in opened


@pytest.mark.parametrize(
    ("name", "value", "source", "words"),
    [
        ("toy", "toy_one:Toy", "raise OSError('no disk')", r"'toy' of the package toy_one cannot be loaded: OSError"),
        ("toy", "toy_two:Toy", "", "toy_two cannot be loaded: AttributeError"),
        ("toy", "toy_three:Toy", "Toy = 3", "toy_three:Toy, is no subclass of longspan.Method"),
        ("toy", "toy_four:DCA", "from longspan.methods import DCA", "toy_four has the name 'dca' in its class"),
        (
            "streaming-llm",
            "toy_five:M",
            "from longspan.methods import StreamingLLM as M",
            "has the name of another method",
        ),
    ],
    ids=["raises", "absent", "other", "renamed", "taken"],
)
def test_one_that_cannot_be_is_named_with_its_package(install, name, value, source, words):
    install(name, value, source)
    known = KnownMethods([StreamingLLM])
    with pytest.raises(LongspanError, match=words) as error:
        known.get("dca")
    assert f"correct its entry point in the group {GROUP}, or uninstall the package {value[:5]}" in str(error.value)


def test_methods_are_added_and_taken_away_by_name():
    known = KnownMethods([StreamingLLM])
    known["other"] = METHODS["dca"]
    assert list(known) == ["streaming-llm", "other"] and known["other"] is METHODS["dca"] and len(known) == 2
    del known["other"]
    assert "other" not in known


def test_they_are_joined_copied_and_shown_as_a_dict_is():
    known, more = KnownMethods([StreamingLLM]), {"other": METHODS["dca"]}
    assert list(known | more) == ["streaming-llm", "other"] and list(more | known) == ["other", "streaming-llm"]
    assert repr(known) == repr(dict(known))
    for copied in (known.copy(), copy(known)):
        copied["other"] = METHODS["dca"]
    assert list(known) == ["streaming-llm"]


def test_one_that_a_package_adds_as_it_is_imported_stays(install):
    source = (
        "import toy_base\nfrom longspan.methods import StreamingLLM\n\n\nclass Toy(StreamingLLM):\n    name = 'toy'\n"
    )
    folder = install("toy", "toy_six:Toy", f"{source}\n\ntoy_base.KNOWN['other'] = Toy\n")
    known = KnownMethods([StreamingLLM])
    (folder / "toy_base.py").write_text("KNOWN = None\n")
    import_module("toy_base").KNOWN = known
    assert list(known) == ["streaming-llm", "toy", "other"]
