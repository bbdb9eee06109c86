"""Dual Chunk Attention (An et al., 2024, arXiv 2402.17463) and what it is compared with."""

from __future__ import annotations

from longspan_eval.reproduce.ablations import parse_spec
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.spec import MethodSpec

WINDOW = 4096  # Llama-2's, which numbers are scaled from
MISTRAL = 32_768  # that of the model of Figure 6
K = 1024
PARTS = {"intra": "parts=intra", "intra and inter": "parts=intra+inter", "DCA": "parts=all"}


def method(session: PaperSession, more: str = "") -> MethodSpec:
    """DCA with the paper's sizes: chunks of 3/4 of whatever the window is, and the rest of it local."""
    window = session.subject.window
    size = max(round(3 * window / 4), 1)
    text = f"dca:chunk_size={size},local_window={window - size},window={window}"
    return parse_spec(f"{text},{more}" if more else text)


def methods(session: PaperSession) -> dict[str, MethodSpec]:
    """Table 1's training-free rows; YaRN is its NTK-Yarn. Scales follow the length, as its rows' figures do."""
    return {
        "stock": parse_spec("stock"),
        "ReRoPE": parse_spec("rerope"),
        "PI": parse_spec("pi"),
        "NTK": parse_spec("ntk"),
        "YaRN": parse_spec("yarn"),
        "dynamic NTK": parse_spec("dynamic-ntk"),
        "DCA": method(session),
    }


def some(session: PaperSession, *names: str) -> dict[str, MethodSpec]:
    """The rows of these names."""
    every = methods(session)
    return {name: every[name] for name in names}


def parts(session: PaperSession) -> dict[str, MethodSpec]:
    """Figure 4's rows: DCA without two of its three parts, without one, and whole."""
    return {"stock": parse_spec("stock"), **{name: method(session, more) for name, more in PARTS.items()}}
