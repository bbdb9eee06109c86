"""Options of how an answer is written, of every command that writes one; greedy without them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from longspan.errors import LongspanError

Temperature = Annotated[
    float | None, typer.Option(help="Sample at this temperature; 0 is greedy, as is the default.", show_default=False)
]
TopP = Annotated[
    float | None, typer.Option(help="Sample among the likeliest tokens that have this probability together.")
]
TopK = Annotated[int | None, typer.Option(help="Sample among so many of the likeliest tokens.", min=1)]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Divide the scores of tokens that are in the prompt or answer by this; 1 does not.")
]
Seed = Annotated[int | None, typer.Option(help="The seed of sampling; default: a random one.", min=0, max=2**63 - 1)]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help=r"End the answer before this text, in which \n is a line break; repeatable."),
]
_LEAST = 1e-5  # a temperature below is greedy: scores over it leave the range of fp32
# What a sampled answer leaves out of the model's generation config, as the server does.
_FRESH = {
    "top_k": 0,
    "top_p": 1.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}


def generate_options(
    *,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    repetition_penalty: float | None,
    seed: int | None,
    stop: list[str] | None,
) -> dict[str, Any]:
    """The options of ``Document.ask`` and of ``generate``.

    Raises:
        LongspanError: a value is out of range, or an option of sampling is given for a greedy answer.
    """
    _check("--temperature", temperature, 0, 2)
    _check("--top-p", top_p, 0, 1, above=True)
    _check("--repetition-penalty", repetition_penalty, 0, 10, above=True)
    sampled = {"--top-p": top_p, "--top-k": top_k, "--seed": seed}
    given = [name for name, value in sampled.items() if value is not None]
    samples = given not in ([], ["--seed"]) if temperature is None else temperature >= _LEAST
    if given and not samples:
        why = "--temperature 0 is greedy" if temperature is not None else "without --temperature the answer is greedy"
        raise LongspanError(f"{given[0]} changes only how tokens are sampled, and {why}; give --temperature 0.7 or so")
    options: dict[str, Any] = {}
    if samples:
        options |= {**_FRESH, "do_sample": True, "temperature": 1.0 if temperature is None else temperature}
        options |= {name: x for name, x in (("top_p", top_p), ("top_k", top_k), ("seed", seed)) if x is not None}
    if repetition_penalty is not None:
        options["repetition_penalty"] = repetition_penalty
    if stop:
        if "" in stop:
            raise LongspanError("--stop is empty; name the text before which the answer ends")
        options["stop_strings"] = [text.replace(r"\n", "\n") for text in stop]  # a shell passes both characters on
    return options


def _check(name: str, value: float | None, least: float, most: float, *, above: bool = False) -> None:
    """Raise ``LongspanError`` for a number, if it is given, that is no number in its range."""
    if value is not None and not (least < value <= most if above else least <= value <= most):
        first = f"above {least:g}" if above else f"from {least:g}"
        raise LongspanError(f"{name} must be a number {first} to {most:g}, not {value:g}")


def cut_words(finish: str, max_new_tokens: int) -> str:
    """What is said of an answer that was cut; nothing of one that ended."""
    if finish != "length":
        return ""
    return f"; the answer was cut at {max_new_tokens:,} tokens, --max-new-tokens allows more"
