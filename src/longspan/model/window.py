"""The trained window of a model, read from its config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from longspan.errors import AttachError
from longspan.methods import DCA, Method

# Names in configs of the number of tokens that a model was trained on, the common name first.
_NAMES = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_length", "max_seq_len", "seq_length",
    "seq_len", "n_ctx", "model_max_length",
)  # fmt: skip
_DUAL = "dual_chunk_attention_config"  # of Qwen2.5-1M and Qwen3-2507


@dataclass(frozen=True)
class Trained:
    """A model's trained window.

    Attributes:
        window: ``L``, in tokens.
        source: where that was read, and what else the config says of it; for the report.
        original: the window before the config's own RoPE scaling, if it differs.
        dual_chunks: DCA with the parameters that the config prescribes for the model, if it does.
        notes: what a user should know.
    """

    window: int
    source: str
    original: int | None = None
    dual_chunks: DCA | None = None
    notes: tuple[str, ...] = ()

    def resolve(self, method: Method) -> Method:
        """The method with every parameter filled in, with the config's own chunks if none were given.

        The config's dual chunks have their last query position at ``L``, one beyond those of a window of ``L``.
        """
        chunks = self.dual_chunks
        if chunks is None:
            return method.resolve(self.window)
        prescribed = method.prescribed(
            chunk_size=chunks.chunk_size,
            local_window=chunks.local_window,
            window=chunks.window,
            length_scale=chunks.length_scale,
        )
        if prescribed is method:
            return method.resolve(self.window)
        size = max(self.window, chunks.window or 0)
        return replace(prescribed, angles=prescribed.angles.resolve(self.window)).resolve(size)


def trained_on(config: Any, window_given: int | None = None, *, model: str = "the model") -> Trained:
    """Read a config.

    The window is, in this order: what the caller says; of ``dual_chunk_attention_config``, the
    ``original_max_position_embeddings``, since the larger ``max_position_embeddings`` beside it is what those chunks
    are to reach; ``max_position_embeddings``, with scaled RoPE too, since that is what the model is good for under its
    own angles; and what some configs call it instead.

    Args:
        config: of a decoder.
        window_given: the window in tokens, from the caller.
        model: for messages.

    Raises:
        AttachError: the config has no window, or an invalid one.
    """
    values = {name: getattr(config, name, None) for name in _NAMES}
    stated = {name: value for name, value in values.items() if type(value) is int and value > 0}
    chunks, dual = _dual_chunks(config, model)
    source, read = (_DUAL, dual) if dual is not None else next(iter(stated.items()), ("", None))
    window = read if window_given is None else int(window_given)
    if window is None:
        wrong = {name: value for name, value in values.items() if value is not None}
        name, value = next(iter(wrong.items()), (_NAMES[0], None))
        said = f"no {name}" if value is None else f"{name}={value!r}, which is no window"
        raise AttachError(f"the config of {model} has {said}; pass window=, the number of tokens it was trained on")
    if window != read:
        chunks, source = None, "as given"
        if dual is not None:
            source += f"; its {_DUAL}, for a window of {dual}, is not used"
    others = [f"{key} {value}" for key, value in stated.items() if value != window and key != source]
    originals = (parameters.get("original_max_position_embeddings") for parameters in rope_types(config))
    original = next((int(value) for value in originals if value is not None), None)
    return Trained(
        window=window,
        source="; ".join([source, *others]),
        original=original if original != window else None,
        dual_chunks=chunks,
        notes=(*_dual_notes(config, chunks, window), *_notes(config, stated, window_given, window)),
    )


def window_of(model: PreTrainedModel) -> int:
    """``L`` of a model by its config."""
    return trained_on(model.config.get_text_config(decoder=True), model=type(model).__name__).window


def says_window(written: Any, config: Any) -> bool:
    """Whether a config as written states its window; transformers fills in a default of its own if it does not."""
    names = {_NAMES[0], config.attribute_map.get(_NAMES[0]), _DUAL}
    if getattr(config.get_text_config(decoder=True), _NAMES[0], None) is None:
        names.update(_NAMES)
    nested = [value for value in written.values() if isinstance(value, dict)]
    return bool(names & written.keys()) or any(says_window(value, config) for value in nested)


def _number(block: dict[str, Any], name: str, model: str) -> int | None:
    value = block.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise AttachError(f"{model}: {name} in the config's {_DUAL} must be a number of tokens from 1, not {value!r}")
    return value


def _dual_chunks(config: Any, model: str) -> tuple[DCA | None, int | None]:
    """DCA as the config prescribes it, and the window in tokens that it is for.

    ``chunk_size`` there is how far a query sees, ``local_size`` of which lie before its chunk: the chunks themselves
    are ``s = chunk_size - local_size`` tokens. A query sees the keys of earlier chunks from position ``chunk_size``,
    though no farther than the last one of a chunk sees the previous chunk, ``2s - 1``. The paper has ``c - 1`` there,
    so ``c`` is one more. vLLM scales scores by length if the block has ``original_max_position_embeddings``.
    """
    block = getattr(config, _DUAL, None)
    if block is None:
        return None, None
    if not isinstance(block, dict):
        raise AttachError(f"{model}: the config's {_DUAL} is not an object with chunk_size and local_size: {block!r}")
    chunk, local = _number(block, "chunk_size", model), _number(block, "local_size", model)
    if chunk is None or local is None or local >= chunk:
        raise AttachError(
            f"{model}: the config's {_DUAL} has chunk_size {chunk} and local_size {local}; both are needed, and the "
            "chunk is the larger one"
        )
    size = chunk - local
    original = _number(block, "original_max_position_embeddings", model)
    scale = 0.0 if original is None else DCA.QWEN_1M
    dca = DCA(chunk_size=size, local_window=min(local, size), window=min(chunk + 1, 2 * size), length_scale=scale)
    return dca, original or chunk


def _dual_notes(config: Any, chunks: DCA | None, window: int) -> Iterator[str]:
    if chunks is None:
        return
    yield (
        f"DCA uses the config's {_DUAL} by default: chunks of {chunks.chunk_size} tokens, "
        f"{chunks.local_window} tokens of the previous chunk at their distance, other chunks at position "
        f"{(chunks.window or 1) - 1}"
    )
    sparse = [key for key in getattr(config, _DUAL) if key.startswith("sparse")]
    if sparse:
        yield f"{', '.join(sparse)} in the config's {_DUAL}: not used, every key is kept"


def _notes(config: Any, stated: dict[str, int], window_given: int | None, window: int) -> Iterator[str]:
    if window_given is not None:
        most = max(stated.values(), default=window_given)
        if window_given > most:
            yield f"window={window_given} exceeds the trained window in the config ({most} tokens)"
        return
    for name, value in stated.items():
        if value < window:
            yield f"the config also has {name}={value}; if this is the trained window, pass window={value}"
    for parameters in rope_types(config):
        original, factor = parameters.get("original_max_position_embeddings"), parameters.get("factor")
        if parameters.get("rope_type") == "yarn" and original and factor and int(original * factor) > window:
            yield (
                f"the config's YaRN stretches {original} tokens to {int(original * factor)}, and the window is "
                f"{window}; pass window={int(original * factor)} if the model was trained with these angles"
            )


def rope_types(config: Any) -> Iterator[dict[str, Any]]:
    """The parameters of each kind of rotary positions in a config."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    yield from nested or [parameters]


def refuse_moving_frequencies(name: str, config: Any) -> None:
    """Raise ``AttachError`` if the model's own frequencies follow the input's length."""
    for parameters in rope_types(config):
        kind = parameters.get("rope_type", "default")
        if kind in ("dynamic", "longrope"):
            raise AttachError(
                f"{name}: its config has rope_type {kind!r}, whose frequencies change with the input's length, so keys "
                "cannot be stored rotated; load it with rope_parameters of rope_type 'default', 'linear' or 'yarn'"
                + (", or that and method='dynamic-ntk'" if kind == "dynamic" else "")
            )
