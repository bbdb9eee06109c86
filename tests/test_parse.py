"""Methods written as text."""

from __future__ import annotations

import pytest

from longspan.errors import LongspanError
from longspan.methods import DCA, METHODS
from longspan.methods.parse import build_method, parse_method, split_spec
from longspan.rope import YaRN


def test_settings_of_the_method_and_of_its_angles():
    made = build_method("dca", ["chunk-size=100", "length_scale=true", "factor=3"], "yarn")
    assert made == DCA(chunk_size=100, length_scale=True, angles=YaRN(factor=3))


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("dca", "dca"),
        (" dca : chunk_size = 100 , parts=intra+inter ", "dca:chunk_size=100,parts=intra+inter"),
        ("dca:chunk-size=100", "dca:chunk_size=100"),
        ("dca:angles=yarn,factor=3", "dca:factor=3,angles=yarn"),
    ],
)
def test_a_line_says_all(spec, same):
    assert parse_method(spec) == parse_method(same)


def test_a_line_is_what_its_settings_say():
    assert parse_method("dca:chunk_size=100,angles=yarn,factor=3") == DCA(chunk_size=100, angles=YaRN(factor=3))
    assert split_spec("a:b=c,d-e=f=g") == ("a", {"b": "c", "d_e": "f=g"})
    assert all(parse_method(name) == METHODS[name]() for name in METHODS)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "name"),
        ("dca:", "key=value"),
        ("dca:chunk_size", "'chunk_size' is not key=value"),
        ("dca:chunk_size=", "not key=value"),
        ("dca:chunk_size=1,chunk-size=2", "twice"),
        ("dca:colour=3", "no parameter 'colour'; it has chunk_size"),
        ("dca:chunk_size=-1", "chunk_size"),
        ("dca:angles=left", "no angles are called 'left'"),
        ("magic", "no method is called 'magic'"),
    ],
)
def test_what_is_wrong_is_named(spec, words):
    with pytest.raises(LongspanError, match=words):
        parse_method(spec)


def test_a_setting_given_twice_is_refused():
    with pytest.raises(LongspanError, match="twice"):
        build_method("dca", ["chunk_size=1", "chunk-size=2"])
