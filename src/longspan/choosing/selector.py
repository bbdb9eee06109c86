"""The selector of keys in one layer: the scores, and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longspan.choosing.queries import QueryBlock
from longspan.choosing.ranks import AcrossRanks
from longspan.kernels.decode import ChosenPositions, ScoreSpec
from longspan.kernels.gathered import Impl, PerQueryChunk, PerRow
from longspan.memory import Slot
from longspan.rope import Rope, Table

See = Callable[[int, int, Tensor], PerRow | PerQueryChunk]  # how the queries r0 : r1 see what they chose
SCORES_AT_ONCE = 2**25  # scores that are held at once (fp32: 128 MB)
QUERIES_AT_ONCE = 4096  # queries of query chunks that run together, whose form for scores and outputs are held at once
_NOTHING_KEPT = Slot(0)


@dataclass(frozen=True)
class Chosen:
    """Choices of queries.

    Attributes:
        units: ``[B, S, T, m]`` int64 if each query chose units for itself, ``[B, S, M]`` int64 tokens if the
            queries of a query chunk chose together; ascending.
        scores: gives the scores that decided, ``[B, S, T, N]`` or ``[B, S, N]`` of units; None if no scores decided.
    """

    units: Tensor
    scores: Callable[[], Tensor] | None


Seen = Callable[[int, int, Chosen], None]  # what the queries r0 : r1 chose, for an observer


class Selector(AcrossRanks):
    """Chooses in one layer for the rows of one cache, which keeps it beside its keys and tells it what becomes of them.

    A selector whose scores are made from the stored keys alone keeps nothing, as this class does. One that summarises
    tokens overrides ``extend``, ``nbytes`` and what follows the store's rows; see ``longspan.choosing.saved``.

    Attributes:
        across: set only if the heads of a layer choose together, which are split over several processes.
        sums_over_ranks: whether ``across`` is called for all that the heads decide together. Each class says so for
            itself, since one that derives from it may decide otherwise.
        in_kernels: whether the kernel for a token that comes alone has its choice. Each class says so for itself too.
        keeps_slots: whether its entries are those of slots, padding included, and not of each row's tokens.
    """

    sums_over_ranks: ClassVar[bool] = False
    in_kernels: ClassVar[bool] = False
    keeps_slots: ClassVar[bool] = False

    @property
    def nbytes(self) -> int:
        """Bytes allocated, on the device."""
        return 0

    def extend(self, q: Tensor, k: Tensor, v: Tensor, pads: Sequence[int], rope: Rope, scale: float) -> None:
        """Take in the tokens that follow those seen so far.

        Args:
            q, k, v: ``[B, H, T, D]``, ``[B, Hkv, T, D]``, ``[B, Hkv, T, Dv]``, unrotated, channels in the order of
                ``Rope.pair``.
            pads: padding tokens at the start of each row.
            rope, scale: the layer's.
        """

    def crop(self, length: int) -> None:
        """Forget the tokens from ``length`` on."""

    def croppable(self, length: int) -> int:
        """The most tokens, at most ``length``, that ``crop`` can leave."""
        return length

    def select(self, rows: Tensor) -> None:
        """Keep the rows ``rows`` ``[R]`` int64 of the batch, in this order; repeats are allowed."""

    def reset(self) -> None:
        """Forget everything."""

    def state(self) -> list[Tensor]:
        """All stored tensors, of any shape."""
        return []

    def columns(self, stop: int) -> int:
        """How many scores a query of those before ``stop`` has at most."""
        return stop

    def choose(self, queries: QueryBlock, r0: int, r1: int) -> Chosen:
        """Choices of queries ``r0 : r1``, which are a run of the selection's."""
        raise NotImplementedError

    def add_many(
        self,
        out: Tensor,
        lse: Tensor,
        queries: QueryBlock,
        runs: Sequence[tuple[int, int]],
        see: See,
        seen: Seen,
        impl: Impl = "auto",
    ) -> int:
        """Choose for the first of ``runs`` together and merge what they see into ``out`` and ``lse``, in place.

        Called if the gathered kernel in C or in Triton can take them, and this process has all heads.

        Args:
            out, lse: ``[B, H, T, Dv]`` and ``[B, H, T]`` of the rows' queries.
            seen: is told what each of these runs chose, without scores.
            impl: of the gathered kernel.

        Returns:
            How many runs that was: none, unless the selector can choose for many.
        """
        return 0

    # A token that comes alone, in one call of C; see ``longspan.kernels.decode``.

    def in_one_call(self, table: Table) -> bool:
        """Whether that kernel has this selector's scores, under the angles ``table``, and its choice."""
        return False

    def scoring(
        self, rows: slice, padding: int, keys: Tensor | None, heads: int, kv_heads: int, positions: ChosenPositions
    ) -> ScoreSpec | None:
        """The kernel's input for scores and choice; None if there is nothing to choose from yet.

        Args:
            rows: of the batch; they begin with ``padding`` tokens that are none.
            keys: ``[B, Hkv, N, D]``, the stored keys that are scored, without padding; None if there are none.
            heads, kv_heads: ``H`` and ``Hkv``.
            positions: where the token sees what it chose.
        """
        raise NotImplementedError

    @property
    def input_copies(self) -> Sequence[Tensor]:
        """Memory ``[B, H, R, D]`` for inputs of the last tokens, which the kernel writes to ``Slot.kept_at`` of."""
        return ()

    def reserve_one(self) -> Slot | None:
        """Memory for what is kept of the next token; see ``longspan.memory.KeyIndex``."""
        return _NOTHING_KEPT

    def commit_one(self) -> None:
        """The token was written."""

    def summarise(self, rope: Rope, scale: float) -> None:
        """Summarise the units that the last token filled, if ``Slot.completes`` says that there are some.

        Args:
            rope, scale: as for ``extend``.
        """

    # A token that comes alone, in a recorded step; see ``longspan.attend.steps.graph_choice``.

    def reserve(self, tokens: int) -> None:
        """Have room for what is kept of ``tokens`` in all, so that taking in up to there moves nothing."""

    @property
    def memory(self) -> Sequence[Tensor]:
        """The tensors that such a step reads and writes in place, of any shape."""
        return ()

    def take_recorded(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, place: Tensor, kept_at: Tensor) -> None:
        """Write what is kept of the new token; it counts once ``commit_one`` says so.

        Args:
            q, k, v: as for ``extend``, of one token.
            place, kept_at: ``[1]`` int64 on the device, as in ``Slot``.
        """
        copies = self.input_copies
        for kept, x in zip(copies, (q, k, v) if len(copies) == 3 else (k,) * len(copies), strict=True):
            kept.index_copy_(2, kept_at, x)

    def choose_recorded(self, queries: QueryBlock, stop: Tensor) -> Tensor:
        """What the new token chooses, by operations that do not depend on the length and never wait.

        Args:
            queries: that token alone as ``0 : 1``, with the keys that there is memory for.
            stop: ``[1]`` int64 on the device, one past the last candidate.

        Returns:
            As ``Chosen.units``.
        """
        raise NotImplementedError
