"""ESA (Wang et al., 2025, arXiv 2502.14477) and what it is compared with, each that selects keeping as many tokens."""

from __future__ import annotations

import math
from dataclasses import replace

from longspan.methods import InfLLM, Method
from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.spec import MethodSpec

WINDOW, MISTRAL = 8192, 32_768  # Llama-3's, which numbers are scaled from; the other's keeps the same numbers
K = 1024
INITIAL, LOCAL, TOP_K, QUERY_CHUNK, REDUCED = 128, 4096, 2048, 512, 128  # lI, lL, k, lC, d'


def sizes(session: PaperSession) -> tuple[int, int, int, int]:
    """``lI``, ``lL``, ``k`` and ``lC``."""
    initial, local, top_k, query_chunk = (session.tokens(n, WINDOW) for n in (INITIAL, LOCAL, TOP_K, QUERY_CHUNK))
    return initial, local, top_k, query_chunk


def method(session: PaperSession, more: str = "") -> MethodSpec:
    """ESA with the paper's numbers of tokens; it chooses as soon as there are more, inside the window too."""
    initial, local, top_k, query_chunk = sizes(session)
    text = f"esa:initial={initial},local={local},top_k={top_k},query_chunk={query_chunk},dense=kept"
    return parse_spec(f"{text},{more}" if more else text)


def own(session: PaperSession, more: str = "") -> MethodSpec:
    """The paper's ESA: reduced scores, if there is a calibration for them."""
    return replace(method(session, more), calibration=session.calibration)


def infinite(session: PaperSession, more: str = "") -> MethodSpec:
    """LM-Infinite that keeps as many tokens as ESA."""
    initial, local, top_k, _ = sizes(session)
    text = f"lm-infinite:sinks={initial},recent={local + top_k},cap={local + top_k}"
    return parse_spec(f"{text},{more}" if more else text)


def methods(session: PaperSession, scaled_to: int) -> dict[str, MethodSpec]:
    """Full attention, stock or with angles scaled to a length; and methods that keep as many tokens as ESA does.

    Args:
        scaled_to: tokens that NTK and YaRN are scaled to, however long a prompt is.
    """
    initial, local, top_k, query_chunk = sizes(session)
    block = InfLLM().resolve(session.subject.window)
    assert block.block is not None
    size = math.gcd(128 if session.as_printed else block.block, top_k)  # whole blocks, and as many tokens
    window = session.subject.window
    full = {"NTK": f"ntk:target_length={scaled_to}", "YaRN": f"yarn:target_length={scaled_to}"}
    made = {
        "stock": parse_spec("stock"),
        # The paper leaves them out for a model whose window is as long.
        **({label: parse_spec(spec) for label, spec in full.items()} if scaled_to > window else {}),
        "StreamingLLM": parse_spec(f"streaming-llm:sinks={initial},recent={local + top_k}"),
        "LM-Infinite": infinite(session),
        "InfLLM": parse_spec(
            f"infllm:initial={initial},local={local},block={size},blocks={top_k // size},query_chunk={query_chunk},"
            "dense=kept"
        ),
        "ESA": method(session),
    }
    return made if session.calibration is None else {**made, "ESA, reduced scores": own(session)}


def kept(method: Method, window: int) -> int:
    """How many tokens a query far beyond the window attends to, those of its own query chunk aside."""
    budget = method.resolve(window).selection(window).budget
    if budget is None:
        raise ValueError(f"{method.name} keeps no fixed number of tokens")
    return budget


def proximities(session: PaperSession) -> dict[str, MethodSpec]:
    """The rows of the ablation of ε, with the scores that the paper takes."""
    return {f"ε = {n}": own(session, f"proximity={n}") for n in (0, 1, 3, 5)}


def heads(session: PaperSession) -> dict[str, MethodSpec]:
    """Tables 6 and 8: a token's score is the best of its heads', or their sum; both in full."""
    return {"individual": method(session, "combine=max"), "uniform": method(session)}
