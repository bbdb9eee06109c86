"""Kernels, recorded steps and pages take a class for one of the library's only if it says itself that it is one."""

from __future__ import annotations

from copy import copy

import pytest

from longspan.errors import AttachError
from longspan.methods import LongHeads
from longspan.paged.supported import check_pages
from support.cases import HEAD, ROPES, build
from support.choices import calibration

BOUNDS = {"chunk_length": 4, "score": "bounds", "remap": "dca"}


def derived(one, says):
    """The same of a class that derives from its own, and says so or not."""
    other = copy(one)
    object.__setattr__(other, "__class__", type("Derived", (type(one),), {"in_kernels": True} if says else {}))
    return other


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize(("name", "options", "given"), [("esa", {}, None), ("esa", {}, 8), ("longheads", BOUNDS, None)])
def test_what_derives_runs_in_kernels_if_it_says_so(name, options, given, says):
    case, rope = build(name, options), ROPES["half-all"]()
    selection = case.method.selection(case.window)
    selector = selection.selector(0, rope, calibration(given, 2 * HEAD, 2) if given else None)
    assert selection.unrecordable_reason() is None and selector.in_one_call(rope.table)
    assert (derived(selection, says).unrecordable_reason() is None) == says
    assert derived(selector, says).in_one_call(rope.table) == says


@pytest.mark.parametrize("says", [True, False])
def test_what_derives_runs_on_pages_if_it_says_so(says, monkeypatch):
    case = build("longheads", BOUNDS)
    own = derived(case.method.selection(case.window), says)
    monkeypatch.setattr(LongHeads, "selection", lambda *_: own)
    if says:
        check_pages(case.method, case.window)
    else:
        with pytest.raises(AttachError, match="smallest and the largest"):
            check_pages(case.method, case.window)
