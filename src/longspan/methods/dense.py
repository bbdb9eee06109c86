"""The queries that attend to everything before the others begin to choose: ``dense``, a parameter of such methods."""

from __future__ import annotations

from longspan.errors import whole
from longspan.methods.base import Method
from longspan.terms import Dense


def check_dense(method: Method, dense: Dense) -> None:
    """Raise ``ValueError`` unless ``dense`` is a word or a number of queries."""
    rule = "dense is 'window', 'kept' or a number of queries ≥ 1"
    method.require(rule, dense in ("window", "kept") or (whole(dense) or 0) >= 1, dense=dense)


def dense_queries(method: Method, dense: Dense, *, kept: int, window: int) -> int:
    """How many first queries attend to all keys; the next one chooses.

    Args:
        dense: ``"window"``, the queries of the trained window; ``"kept"``, those with no more keys than a query keeps
            once it chooses; or a number between the two.
        kept: the tokens that a query keeps once it chooses.

    Raises:
        ValueError: the number is not between ``kept`` and ``window``.
    """
    if dense == "window":
        return window
    rows = kept if dense == "kept" else int(dense)
    method.require("kept tokens ≤ dense ≤ window", kept <= rows <= window, kept=kept, dense=rows, window=window)
    return rows
