"""LongHeads' time and memory: its Table 5."""

from __future__ import annotations

from collections.abc import Sequence

from longspan.memory import KVTier
from longspan_eval.cell import Cell
from longspan_eval.reduce import against, found, median_of
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.longheads_methods import WINDOW, half, halved, lm_infinite, method
from longspan_eval.reproduce.measures import Timed
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.table import PaperTable, missing_row
from longspan_eval.spec import MethodSpec

NO_OFFLOAD = "offloading is from a GPU to the host's memory, and this model runs in that memory"
SHOWN = {
    "prefill": median_of("prefill", "seconds"),
    "a token": median_of("token", "seconds"),
    "memory": median_of("memory", "bytes"),
    "found": found,
}
EAGER = "stock, eager"  # the paper's Llama2; its Flash Atten is torch's own (sdpa), which ratios are against


def rows(session: PaperSession) -> dict[str, tuple[MethodSpec, str | None, KVTier]]:
    """Every row: how the model is run, transformers' attention, where the cache lies."""
    stock, short = parse_spec("stock"), halved(session)
    own = short["LongHeads, k = 8"]
    return {
        EAGER: (stock, "eager", "device"),
        "stock, flash": (stock, "sdpa", "device"),
        "LM-Infinite": (lm_infinite(session), None, "device"),
        "LongHeads": (method(session), None, "device"),
        "LongHeads, Eq 3": (method(session, "local_chunks=1"), None, "device"),
        "LongHeads, k = 8": (own, None, "device"),
        "LongHeads, k = 8, Eq 3": (short["LongHeads, k = 8, Eq 3"], None, "device"),
        "LongHeads, k = 8, offloaded": (own, None, "host"),
    }


def _efficiency(session: PaperSession) -> Sequence[Cell]:
    cells = []
    tokens = session.choose(100, 16)
    for length in session.lengths([WINDOW * n for n in session.choose((1, 4, 8, 32), (1, 4, 8))], WINDOW):
        where, too_long = session.in_windows(length), session.too_long(length)
        rounds = range(0 if too_long else session.prompts(50, 3))
        base = tuple(Timed(parse_spec("stock"), length, n, tokens=tokens, implementation="sdpa") for n in rounds)
        for label, (spec, implementation, tier) in rows(session).items():
            if tier == "host" and session.device.type == "cpu":
                cells.append(missing_row(f"{label}, {where}", "prefill", "a GPU", NO_OFFLOAD))
                continue
            reason = session.unfit(spec, length)
            timed = tuple(
                Timed(spec, length, n, tokens=tokens, implementation=implementation, kv_tier=tier) for n in rounds
            )
            timed = () if reason else timed
            cells += [Cell(f"{label}, {where}", name, show, timed, missing=reason) for name, show in SHOWN.items()]
            if implementation == "sdpa":
                continue
            for name in ("prefill", "token"):
                column = f"{'a ' if name == 'token' else ''}{name}, over flash"
                cells.append(Cell(f"{label}, {where}", column, against(name), timed, base, missing=reason))
    return cells


def _efficiency_protocol(session: PaperSession) -> str:
    return (
        f"{session.prompts(50, 3)} passkey prompts a length (the paper: 50), rows taking turns; medians, and ratios "
        f"within a round; {session.choose(100, 16)} tokens generated (the paper: 100). Flash is torch's own (sdpa). "
        f"Memory is the most in use above what was before the prompt, weights not counted. k = 8 is an attention "
        f"window of {half(session):,} tokens, which chooses inside the model's window too (the paper's at 128k: 2k). "
        "The rows without it are stock there to the bit, which the paper's 96% at 4k cannot be."
    )


TABLES = (PaperTable("Table 5", "Seconds, memory and accuracy", _efficiency_protocol, _efficiency, interleaved=True),)
