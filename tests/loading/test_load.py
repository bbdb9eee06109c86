"""``longspan.load`` with a method: model and tokenizer extended in one line."""

from __future__ import annotations

import pytest

import longspan
from longspan.hf.attach import attachment_of
from longspan.loading import models
from support.command_line import folder, no_window  # noqa: F401


def test_a_method_is_attached_with_its_options(folder):  # noqa: F811
    model, tokenizer = longspan.load(folder, "dca", chunk_size=30, impl="torch", device="cpu", quiet=True)
    assert attachment_of(model).report.method == longspan.DCA(chunk_size=30).resolve(128) and tokenizer("a")
    assert attachment_of(longspan.load(folder, device="cpu", quiet=True)[0]) is None


def test_a_window_is_given_to_a_model_that_states_none(no_window):  # noqa: F811
    model, _ = longspan.load(no_window, method=longspan.DCA, window=64, device="cpu", quiet=True)
    assert attachment_of(model).report.window == 64


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [("dca", {"chunksize": 3}, "no parameter 'chunksize'"), (None, {"chunk_size": 3}, "only a method takes options")],
)
def test_what_cannot_be_is_refused_before_the_model_is_loaded(method, options, said, monkeypatch):
    monkeypatch.setattr(models, "load_model", None)
    with pytest.raises(longspan.LongspanError, match=said):
        longspan.load("bundled", method, **options)
