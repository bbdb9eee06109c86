"""Methods written as text."""

from __future__ import annotations

import pytest

from longspan.errors import LongspanError
from longspan.methods import DCA, METHODS
from longspan.methods.parse import build_method, parse_method, split_spec, written
from longspan.rope import YaRN


def test_settings_of_the_method_and_of_its_angles():
    made = build_method("dca", ["chunk-size=100", "length_scale=0.1", "factor=3"], "yarn")
    assert made == DCA(chunk_size=100, length_scale=0.1, angles=YaRN(factor=3))


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("dca", "dca"),
        (" dca : chunk_size = 100 , length_scale=0.1 ", "dca:chunk_size=100,length_scale=0.1"),
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
        ("dca:angles=left", "unknown angles 'left'"),
        ("magic", "unknown method 'magic'"),
    ],
)
def test_what_is_wrong_is_named(spec, words):
    with pytest.raises(LongspanError, match=words):
        parse_method(spec)


def test_a_setting_given_twice_is_refused():
    with pytest.raises(LongspanError, match="twice"):
        build_method("dca", ["chunk_size=1", "chunk-size=2"])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_at_its_defaults_is_written_as_its_name(name):
    assert written(METHODS[name]()) == name


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ("dca:chunk-size=100", "dca:chunk_size=100"),
        ("dca:length_scale=none", "dca"),
        ("dca:length_scale=0.1,chunk_size=100", "dca:chunk_size=100,length_scale=0.1"),
        ("longheads:score=representation", "longheads"),
        ("longheads:score=bounds,num_chunks=8", "longheads:num_chunks=8,score=bounds"),
        ("longheads:num_chunks=8,score=bounds", "longheads:num_chunks=8,score=bounds"),
        ("esa:angles=yarn,factor=3,top_k=9", "esa:top_k=9,angles=yarn,factor=3"),
        ("esa:angles=yarn", "esa:angles=yarn"),
        ("pi:scale=8", "pi:scale=8"),
        ("pi:scale=2.5", "pi:scale=2.5"),
        ("yarn:beta_fast=64,target_length=9000", "yarn:target_length=9000,beta_fast=64"),
        ("lm-infinite:middle_top_k=5", "lm-infinite:middle_top_k=5"),
    ],
)
def test_one_method_has_one_label(spec, label):
    assert written(parse_method(spec)) == label
    assert parse_method(label) == parse_method(spec)
