"""The parts of a method's page that its class states: facts, formula, parameters, picture."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache

import longspan
from docstrings import parameters_of, text_of
from longspan.methods import METHODS
from longspan.rope import Angles
from pictures import OPTIONS, TOKENS, WINDOW, draw, draw_slowed, layout, slowed

L = 4096  # the window that defaults are shown for


def facts(name: str) -> str:
    """A table of what holds for the method at its defaults: paper, exact rows, size of the cache."""
    method = METHODS[name]().resolve(L)
    exact = method.exact_queries(L, 4 * L)
    rows = {
        "call": f'`longspan.extend(model, "{name}")`, or `longspan.{_class(name)}(…)` with parameters',
        "paper": _linked(method.paper),
        "keys are": "chosen by their scores" if method.selects else "kept by their index",
        "exact rows": f"the first {exact:,} equal the stock model's (window {L:,}, text of {4 * L:,})"
        if exact
        else f"none: in a text of {4 * L:,} every row differs from the stock model's (window {L:,})",
        "cache": _size(_cache()[name] / _cache()["full"]),
    }
    return "\n".join(["| | |", "| --- | --- |", *(f"| **{what}** | {said} |" for what, said in rows.items())])


def _size(times: float) -> str:
    same = "as large as the stock model's: one stored rotation of each key"
    return same if times == 1 else f"{times:g} times as large as the stock model's: two stored rotations of each key"


def _class(name: str) -> str:
    """What a user builds the method from: its class, or its angles'."""
    angles = type(METHODS[name]().angles)
    return METHODS[name].__name__ if angles is Angles else angles.__name__


def _linked(paper: str) -> str:
    paper = re.sub(r"arXiv (\d+\.\d+)", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)
    return re.sub(r"(github\.com/\S+)", r"[\1](https://\1)", paper)


@cache
def _cache() -> dict[str, int]:
    """Bytes of keys and values a token of the bundled model takes under each method."""
    model, _ = longspan.load_bundled()
    return {name: longspan.inspect(model, name).kv_bytes_per_token for name in METHODS}


def formula(name: str) -> str:
    """The docstring of the method's class, and of its angles if the method is one of angles."""
    method = METHODS[name]()
    texts = [text_of(type(method))]
    if type(method.angles) is not Angles:
        texts.append(text_of(type(method.angles)))
    return "\n\n".join(texts)


def parameters(name: str) -> str:
    """A table of the parameters: default at a window of ``L``, and meaning.

    Raises:
        ValueError: the docstring leaves one out.
    """
    cls = METHODS[name]
    method, described = cls().resolve(L), parameters_of(cls)
    own = [field.name for field in fields(cls) if field.name != "angles"]
    if missing := [field for field in own if field not in described]:
        raise ValueError(f"the docstring of {cls.__name__} says nothing about {', '.join(missing)}")
    rows = [(f"`{field}`", f"`{getattr(method, field)!r}`", described[field]) for field in own]
    if type(method.angles) is Angles:
        rows.append(("`angles`", "the model's own", "scaled angles to run under, such as `longspan.YaRN(factor=2)`"))
    else:
        given = type(method.angles)()
        rows += [
            (f"`{field.name}`", f"`{getattr(method.angles, field.name)!r}`", _told(getattr(given, field.name)))
            for field in fields(method.angles)
        ]
    head = [f"| parameter | default at L = {L:,} | meaning |", "| --- | --- | --- |"]
    return "\n".join(head + [f"| {field} | {value} | {said} |" for field, value, said in rows])


def _told(default: object) -> str:
    return "follows from the others unless given" if default is None else f"`{default!r}` for every model"


def picture(name: str) -> str:
    """The method's positions, or for scaled angles by how much they slow each pair of channels, with a caption."""
    method = METHODS[name]()
    if type(method.angles) is not Angles:
        caption = (
            "Keys and distances are those of full attention; the angles change. By how much each pair of channels of a "
            f"head of 64 is slowed, at a window of {L:,} and a text of {4 * L:,}. Point at a bar for its factor."
        )
        return _figure(draw_slowed(slowed(method)), caption)
    shown = layout(name)
    given = ", ".join(f"{field}={getattr(shown.method, field)}" for field in OPTIONS.get(name, {}))
    caption = f"{TOKENS} tokens at a window of {WINDOW}" + (f", {given}. " if given else ". ")
    caption += "A cell says at which relative position a query (row) sees a key (column); grey dots are left out."
    if bool((shown.rel[shown.keep] >= WINDOW).any()):
        caption += " Red positions lie outside the trained window."
    if method.selects:
        caption += " Framed cells were chosen, here by random queries and keys."
    return _figure(draw(shown), caption)


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"
