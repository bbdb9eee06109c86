"""A user's settings of longspan in vLLM, and whether its pages have a size that fits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from longspan.choosing.chunks import Chunks
from longspan.errors import AttachError, LongspanError, check_count, did_you_mean
from longspan.kernels.dispatch import BACKENDS, Impl, check_impl
from longspan.methods import DCA, Method
from longspan.methods.parse import build_method, split_spec

KEY = "longspan"  # of vLLM's additional_config
DUAL = "dual_chunk_attention_config"  # of a model's config: Qwen2.5-1M, Qwen3-2507


@dataclass(frozen=True)
class Settings:
    """The settings.

    Attributes:
        method: the method, not resolved.
        window: the trained window in tokens; None for what the model's config says.
        impl: which kernel runs.
        reason: why the method was chosen, if the user did not name it.
    """

    method: Method
    window: int | None = None
    impl: Impl = "auto"
    reason: str | None = None


def asked(additional: Any, config: Any = None) -> Settings | None:
    """Settings in vLLM's ``additional_config`` or a model's own config; None if neither asks.

    ``{"longspan": {"method": "dca", "window": 4096, ...}}`` has the method, the window, ``impl``, ``angles`` and the
    method's own parameters; ``{"longspan": "dca:chunk_size=3072"}`` says the same in one line. Without a method it is
    DCA; with null or false instead, nothing is asked whatever the model's config says.

    Raises:
        LongspanError: an unknown method or parameter, or an invalid value.
    """
    given = additional.get(KEY) if isinstance(additional, Mapping) else None
    if isinstance(additional, Mapping) and KEY in additional and given in (None, False):
        return None
    if given is None:
        if isinstance(additional, Mapping) and (close := get_close_matches(KEY, map(str, additional), n=1, cutoff=0.8)):
            raise LongspanError(f"additional_config has {close[0]!r}; the key that longspan reads is {KEY!r}")
        if getattr(config, DUAL, None):
            return Settings(DCA(), reason=f"the config has {DUAL}")
        return None
    try:
        return _read(given)
    except LongspanError as error:
        raise type(error)(f"longspan in additional_config: {error}") from error


def _read(given: Any) -> Settings:
    if isinstance(given, str):
        of_text, values = split_spec(given)
        given = {"method": of_text, **values}
    if not isinstance(given, Mapping):
        raise LongspanError(f'it must be an object such as {{"method": "dca"}} or a text such as "dca", not {given!r}')
    rest = dict(given)
    name, angles = (rest.pop(key, default) for key, default in (("method", "dca"), ("angles", None)))
    window, impl = rest.pop("window", None), rest.pop("impl", "auto")
    try:
        check_impl(impl)
    except ValueError as error:
        raise LongspanError(f"{error}{did_you_mean(str(impl), BACKENDS)}") from None
    settings = [f"{key}={value}" for key, value in rest.items()]
    method = build_method(str(name), settings, None if angles is None else str(angles))
    if isinstance(window, str) and window.isdecimal():
        window = int(window)
    return Settings(method, None if window is None else check_count("window", window), impl)


def paged(method: Method, prescribed: DCA | None) -> tuple[Method, list[str]]:
    """A method as pages can run it, and notes: DCA without the length scale that a config prescribes.

    Args:
        method: not resolved; a length scale that a user asked for stays, and ``check_pages`` refuses it.
        prescribed: the dual chunks of the model's config.
    """
    if not isinstance(method, DCA) or method.length_scale is not None:
        return method, []
    notes = []
    if prescribed is not None and prescribed.length_scale:
        notes.append(
            f"DCA runs without the length scale of this model's config, {prescribed.length_scale}: pages cannot follow "
            "the length of one text; longspan.extend on transformers applies it"
        )
    return replace(method, length_scale=0.0), notes


def check_page_size(selection: Chunks | None, size: int) -> None:
    """Raise ``AttachError`` unless the chunks of a selection are whole pages of ``size`` tokens."""
    if selection is not None and selection.size % size:
        fits = next(n for n in range(min(size, selection.size), 0, -1) if selection.size % n == 0)
        raise AttachError(
            f"longspan in vLLM: longheads has chunks of {selection.size} tokens, and pages have {size}; a chunk is "
            f"made of whole pages: pass --block-size {fits}, or another chunk_length"
        )
