"""Record the keys that the heads of an extended model choose while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from transformers import PreTrainedModel

from longspan.attend import Choice, Observer
from longspan.errors import LongspanError
from longspan.hf.attach import attachment_of
from longspan.methods import Method
from longspan.model.parallel import split_reason

Queries = Literal["last", "all"]


@dataclass(frozen=True, eq=False)
class Trace:
    """A sequence of ``Choice``: one per call, layer, batch row and recorded query (or query chunk).

    Attributes:
        method: the resolved method.
        window: the trained window, in tokens. Queries inside it attend to all keys and choose none.
        model: the model's class name.
        choices: all choices, in the order of the computation.
    """

    method: Method
    window: int
    model: str
    choices: list[Choice] = field(repr=False)

    def __len__(self) -> int:
        return len(self.choices)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def at(self, query: int | None = None, *, row: int = 0, call: int | None = None) -> list[Choice]:
        """The choices of all layers for one query of one row.

        Args:
            query: the query's index in its row, without padding; by default the last recorded query. If the queries
                of a query chunk choose together, any query of the chunk.
            row: of the batch.
            call: the number of the forward in the recording, from 0; by default the last one with this query.

        Returns:
            One choice per layer, in the order of the layers.

        Raises:
            LongspanError: no such choice is recorded.
        """
        in_row = [choice for choice in self.choices if choice.row == row and call in (None, choice.call)]
        if query is None and in_row:
            query = max((choice.call, choice.query) for choice in in_row)[1]
        matches = [choice for choice in in_row if query is not None and choice.first <= query <= choice.query]
        if not matches:
            queries = sorted({choice.query for choice in in_row})
            recorded = f"queries {queries[0]} to {queries[-1]}" if queries else "none"
            raise LongspanError(
                f"no choice of query {'(any)' if query is None else query} in row {row}"
                f"{'' if call is None else f', call {call}'}; recorded: {recorded}. Queries inside the window of "
                f"{self.window} tokens choose no keys; record(model, queries='all') also records earlier queries"
            )
        last_call = max(choice.call for choice in matches)
        return sorted((choice for choice in matches if choice.call == last_call), key=lambda choice: choice.layer)


@contextmanager
def record(model: PreTrainedModel, *, queries: Queries = "last", scores: bool = True) -> Iterator[Trace]:
    """Record the keys that the heads of an extended model choose, and their scores, inside a ``with`` block.

    Examples:
        >>> longspan.extend(model, "longheads")
        >>> with longspan.record(model) as trace:
        ...     model(input_ids)
        >>> trace.at()  # the last token's choice in every layer

    A model that is not recorded has no extra cost. Every recorded forward has its number (``Choice.call``); forwards
    that already run when the block begins are not recorded, and forwards that are not recorded run as without it.

    Without scores a recorded forward gives the same result to the bit: it copies the choices to the CPU. With scores, a
    single token on the CPU is computed by separate kernels instead of one call, and the query chunks of ESA and InfLLM
    one by one instead of several in a call, because those calls do not keep their scores; the result is the same but
    for rounding (in bf16 the last bits of the logits), and so, if two units score almost alike, may be the choice.

    Args:
        model: extended with a method that chooses keys: longheads, esa, infllm, or lm-infinite with ``middle_top_k``.
        queries: ``"last"``: the last query of each call; ``"all"``: every query that chooses. For ``"all"`` the size
            of the scores is quadratic in the length of the text.
        scores: whether to record scores.

    Yields:
        The trace. It fills as the model runs and stays usable after the block.

    Raises:
        LongspanError: the model is not extended, its method does not choose keys, its weights are split
            over processes, or another recording is active.
    """
    if queries not in ("last", "all"):
        raise LongspanError(f"queries must be 'last' or 'all', not {queries!r}")
    attachment = attachment_of(model)
    if attachment is None:
        raise LongspanError("the model is not extended: call longspan.extend(model, 'longheads') first")
    if (reason := split_reason(model)) is not None:
        raise LongspanError(
            f"{reason}, and a recording is of all heads; record a model that is loaded in one process, without tp_plan"
        )
    attender, report = attachment.attender, attachment.report
    if not attender.method.selects:
        raise LongspanError(
            f"{attender.method.name} keeps keys by their index and does not choose keys to record; extend the model "
            "with longheads, esa, infllm, or lm-infinite with middle_top_k"
        )
    if attender.observer is not None:
        raise LongspanError("a recording of this model is already active; end it first")
    observer = Observer(queries == "all", scores)
    attender.observer = observer  # before the hook that numbers forwards, so that a numbered forward has all layers
    handle = attachment.layers[0].module.register_forward_pre_hook(lambda *_: observer.begin())
    try:
        yield Trace(attender.method, report.window, report.model, observer.choices)
    finally:
        attender.observer = None
        handle.remove()
