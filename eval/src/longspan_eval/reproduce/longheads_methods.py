"""LongHeads (Lu et al., 2024, arXiv 2402.10685) and what it is compared with, scaled from a window of 4,096 tokens."""

from __future__ import annotations

from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.spec import MethodSpec

WINDOW = 4096
SAID_THEM = "The instruction says “memorize it”, whereas the paper's Table 6 prints “memorize them”."

SAID_LOCAL = (
    "“LongHeads” keeps two local chunks, as the authors' released code does; “Eq 3” is Equation 3 to the letter: one, "
    "the query's own (`local_chunks=1`)."
)

ABLATIONS = {  # after the two of chunk length and number of chunks that all share
    "the method": "",
    "the method, Eq 3": "local_chunks=1",
    "random chunks": "pick=random,first_chunk=false,local_chunks=1",
    "random chunks, first and last kept": "pick=random",
    "the lowest-scored": "pick=lowest",
    "without the first chunk": "first_chunk=false",
    "heads fixed": "share=layer",
    "layers fixed": "fix_layers=true",
    "heads and layers fixed": "share=layer,fix_layers=true",
}


def chunk_length(session: PaperSession, paper: int = 256) -> int:
    """The paper's tokens of a chunk, scaled and rounded down, so that as many chunks fit whatever the window is."""
    return paper if session.as_printed else max(paper * session.subject.window // WINDOW, 1)


def method(session: PaperSession, more: str = "", length: int = 256, chunks: int = 16) -> MethodSpec:
    """LongHeads as in the paper, each query head choosing by itself; ``length`` and ``chunks`` at a window of 4,096."""
    text = f"longheads:chunk_length={chunk_length(session, length)},num_chunks={chunks}"
    text += "" if "share=" in more else ",share=head"
    return parse_spec(f"{text},{more}" if more else text)


def lm_infinite(session: PaperSession) -> MethodSpec:
    """LM-Infinite with 10 first tokens and 4,096 recent ones; the 10 are tokens whatever the window is."""
    window = session.subject.window
    recent = min(session.tokens(WINDOW, WINDOW), window)
    return parse_spec(f"lm-infinite:sinks={min(10, window)},recent={recent},cap={window}")


def ntk(session: PaperSession) -> float:
    """The factor of dynamic NTK: 2.0 for base models, 1.0 for chat models."""
    return 1.0 if session.chat else 2.0


def ntk_said(session: PaperSession) -> str:
    """A protocol's line on the rows with NTK."""
    kind = "chat" if session.chat else "base"
    return (
        f"NTK: dynamic, factor {ntk(session):.1f}, as the model is a {kind} one (the paper: 2.0 for base models, 1.0 "
        "for chat models)."
    )


def methods(session: PaperSession) -> dict[str, MethodSpec]:
    """The rows that the paper compares without fine-tuning, Eq 3 to the letter, and one of longspan's own."""
    factor = ntk(session)
    initial = f"prefill=full,angles=dynamic-ntk,factor={factor:g}"
    return {
        "stock": parse_spec("stock"),
        "NTK": parse_spec(f"dynamic-ntk:factor={factor:g}"),
        "LM-Infinite": lm_infinite(session),
        "LongHeads": method(session),
        "LongHeads, k = 8": method(session, chunks=8),
        "LongHeads, Eq 3": method(session, "local_chunks=1"),
        "LongHeads w/ NTK init": method(session, initial),
        "LongHeads w/ NTK init, Eq 3": method(session, f"{initial},local_chunks=1"),
        "LongHeads, scored by bounds": method(session, "score=bounds"),
    }


def few(session: PaperSession) -> dict[str, MethodSpec]:
    """The rows; at the scale "quick" those that say most."""
    every = methods(session)
    quick = ("stock", "NTK", "LM-Infinite", "LongHeads", "LongHeads, Eq 3", "LongHeads, scored by bounds")
    return session.choose(every, {name: every[name] for name in quick})


def lengths_of(session: PaperSession) -> list[int]:
    """4k to 32k at a window of 4,096."""
    return session.lengths([WINDOW * n for n in (1, 2, 4, 8)], WINDOW)


def ablations(session: PaperSession) -> dict[str, MethodSpec]:
    """The paper's ablations. A chunk of 512 leaves room for 8 of them in a window of 4,096."""
    made = {name: method(session, more) for name, more in ABLATIONS.items()}
    made |= {f"k = {k}": method(session, chunks=k) for k in (4, 8)}
    made |= {"l = 128": method(session, length=128), "l = 512": method(session, length=512, chunks=8)}
    return made


def half(session: PaperSession) -> int:
    """The attention window of the analysis and of 128k: 2,048 of 4,096 tokens."""
    return session.tokens(2048, WINDOW)


def halved(session: PaperSession) -> dict[str, MethodSpec]:
    """The rows at that attention window: 8 chunks of 256, chosen as soon as there are more."""
    return {
        "LongHeads, k = 8": method(session, "dense=kept", chunks=8),
        "LongHeads, k = 8, Eq 3": method(session, "dense=kept,local_chunks=1", chunks=8),
        "LongHeads, k = 8, scored by bounds": method(session, "dense=kept,score=bounds", chunks=8),
    }
