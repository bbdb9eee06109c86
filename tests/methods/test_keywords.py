"""Parameters as keywords make the method that an object would be; what is unclear is one error."""

from __future__ import annotations

import pytest

import longspan
from longspan.methods.keywords import SETTINGS, configured
from support.hf_models import make


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("dca", {"chunk_size": 3}, longspan.DCA(chunk_size=3)),
        (longspan.DCA, {"chunk_size": 3}, longspan.DCA(chunk_size=3)),
        (longspan.DCA, {}, longspan.DCA()),
        ("dca:chunk_size=3,window=9", {"local_window": 2}, longspan.DCA(chunk_size=3, window=9, local_window=2)),
        ("dca:angles=yarn", {"factor": 4}, longspan.DCA(angles=longspan.YaRN(factor=4))),
        (longspan.YaRN, {"factor": 4}, longspan.YaRN(factor=4)),
        ("longheads", {"score": "bounds"}, longspan.LongHeads(score="bounds")),
        ("auto", {}, "auto"),
        ("mine.json", {}, "mine.json"),
    ],
)
def test_the_same_as_an_object(method, parameters, expected):
    assert configured(method, parameters) == expected


@pytest.mark.parametrize(
    ("method", "parameters", "given", "said"),
    [
        (
            "dca",
            {"chunksize": 3},
            (),
            "dca has no parameter 'chunksize'; it has chunk_size, length_scale, .*chunk_size",
        ),
        ("streaming-llm", {"windw": 3}, (), "and extend itself has window.*did you mean 'window'"),
        ("dca:chunk_size=3", {"chunk_size": 4}, (), "chunk_size is set twice"),
        ("auto", {"chunk_size": 4}, (), "chunk_size: 'auto' states the parameters itself"),
        ("mine.json", {"chunk_size": 4}, (), "chunk_size: 'mine.json' states the parameters itself"),
        (longspan.DCA(), {"chunk_size": 4}, (), r"has its parameters already; pass DCA\(chunk_size=...\)"),
        ("dca", {"chunk_size": 4}, ("window",), r"window is a setting of extend and a parameter of dca.*an object"),
        ("dca", {"chunk_size": "4"}, (), "chunk_size must be an integer, not '4'"),
        ("dca", {"chunk_size": 0}, (), "chunk_size ≥ 1"),
    ],
)
def test_what_is_refused(method, parameters, given, said):
    with pytest.raises(longspan.LongspanError, match=said):
        configured(method, parameters, given)


def test_extend_takes_them_and_names_no_setting_otherwise():
    model = make("llama")
    report = longspan.extend(model, "dca", chunk_size=3)
    assert report.method == longspan.DCA(chunk_size=3).resolve(report.window)
    assert longspan.extend(model, longspan.DCA, window=40).method == longspan.DCA().resolve(40)
    with longspan.extended(model, "streaming-llm", recent=7, length=90) as report:
        assert report.method.recent == 7
    longspan.restore(model)
    assert longspan.inspect(model, longspan.PI, scale=2).method.angles == longspan.PI(scale=2)
    assert set(SETTINGS) == set(longspan.extend.__kwdefaults__)
    with pytest.raises(longspan.LongspanError, match="pass an object"):
        longspan.extend(model, "dca", chunk_size=3, window=40)
