"""Record what the heads of an extended model choose, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from transformers import PreTrainedModel

from longspan.attend import Choice, Observer
from longspan.errors import LongspanError
from longspan.hf.attach import attachment_of
from longspan.methods import Method

Queries = Literal["last", "all"]


class Trace:
    """What was chosen: a list of ``Choice``, one for each call, layer, batch row and query (or piece) asked for.

    Attributes:
        method: the method that chose, resolved.
        window: the trained window, in tokens. Queries inside it attend to everything and choose nothing.
        model: the model's class.
    """

    def __init__(self, method: Method, window: int, model: str, observer: Observer) -> None:
        self.method, self.window, self.model = method, window, model
        self._observer = observer

    @property
    def choices(self) -> list[Choice]:
        """All of them, in the order in which they were made."""
        return self._observer.choices

    def __len__(self) -> int:
        return len(self.choices)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def at(self, query: int | None = None, *, row: int = 0, call: int | None = None) -> list[Choice]:
        """What all layers chose for one query of one row.

        Args:
            query: its own index, padding not counted; the last one recorded unless given. Where queries choose
                together, any of the piece.
            row: of the batch.
            call: which forward of the recording, from 0; the last one that has it unless given.

        Returns:
            one choice a layer, in the order of the layers.

        Raises:
            LongspanError: there is no such choice.
        """
        of_row = [one for one in self.choices if one.row == row and call in (None, one.call)]
        if query is None and of_row:
            query = max((one.call, one.query) for one in of_row)[1]
        found = [one for one in of_row if query is not None and one.first <= query <= one.query]
        if not found:
            have = sorted({one.query for one in of_row})
            there = f"queries {have[0]} to {have[-1]} are" if have else "nothing is"
            raise LongspanError(
                f"no choice of query {'(any)' if query is None else query} in row {row}"
                f"{'' if call is None else f', call {call}'}: {there} recorded of it. Queries inside the window of "
                f"{self.window} tokens choose nothing; record(model, queries='all') keeps those before the last one"
            )
        latest = max(one.call for one in found)
        return sorted((one for one in found if one.call == latest), key=lambda one: one.layer)


@contextmanager
def record(model: PreTrainedModel, *, queries: Queries = "last", scores: bool = True) -> Iterator[Trace]:
    """Record which keys an extended model's heads choose, and by which scores, for the length of a ``with`` block.

    Examples:
        >>> longspan.extend(model, "longheads")
        >>> with longspan.record(model) as trace:
        ...     model(input_ids)
        >>> trace.at()  # the last token's choice in every layer

    Nothing is computed differently; what was chosen is copied to the CPU. When nothing is recorded it costs nothing.
    Forwards of all threads are recorded, each under a number of its own (``Choice.call``); those that run when the
    block begins are left out.

    Args:
        model: extended with a method that chooses: longheads, esa, infllm, or lm-infinite with ``middle_top_k``.
        queries: ``"last"``: the last query of each call; ``"all"``: every query that chooses. Those of a long text
            have scores that grow with the square of its length.
        scores: whether scores are kept too.

    Yields:
        the trace, which fills as the model runs and stays usable afterwards.

    Raises:
        LongspanError: the model is not extended, its method chooses nothing, or it is being recorded already.
    """
    if queries not in ("last", "all"):
        raise LongspanError(f"queries is 'last' or 'all', not {queries!r}")
    attachment = attachment_of(model)
    if attachment is None:
        raise LongspanError("the model is not extended: call longspan.extend(model, 'longheads') first")
    attender, report = attachment.attender, attachment.report
    if not attender.method.selects:
        raise LongspanError(
            f"{attender.method.name} keeps keys by their index and chooses none, so there is nothing to record; extend "
            "the model with longheads, esa, infllm, or lm-infinite with middle_top_k"
        )
    if attender.observer is not None:
        raise LongspanError("the model is being recorded already; end that recording first")
    observer = Observer(every=queries == "all", scores=scores)

    def begins(*_: Any) -> None:
        observer.begin()

    attender.observer = observer  # before forwards are numbered, so that of those that are no layer is missed
    handle = attachment.layers[0].module.register_forward_pre_hook(begins)
    try:
        yield Trace(attender.method, report.window, report.model, observer)
    finally:
        attender.observer = None
        handle.remove()
