"""What a GGUF file says of its model, and whether transformers' reader takes all of it in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.errors import LongspanError, one_line
from longspan.install import pip_install

if TYPE_CHECKING:
    import numpy as np

# What files state, and what configs call it; everything else that a file states of its model is unknown.
_SAID = {
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "rope.freq_base": (),
    "rope.freq_base_swa": (),
    "rope.dimension_count": (),
}
_ASIDE = {"vocab_size", "tensor_data_layout", "use_parallel_residual", "rope.scaling.finetuned"}
_ROPE = {"rope.scaling.type": "rope_type", "rope.scaling.factor": "factor"}
_ROPE |= {"rope.scaling.original_context_length": "original_max_position_embeddings"}
_FACTORS = "rope_freqs.weight"  # by which Llama 3 divides its frequencies
# Rules by which byte-level tokenizers split a text before they merge, besides those that transformers knows.
_AS_GPT2 = {"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"}
_DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"}
PLAIN = ("F32", "F16", "BF16", "F64")  # kinds of tensors of numbers; all others are in blocks of codes
# Of a weight that stays packed. Scales of two parts become one in fp32; kinds that are not here become codes of int8.
_BYTES = {"Q4_0": 0.625, "Q4_1": 0.625, "Q4_K": 0.75, "Q5_1": 1.125, "Q5_K": 1.25, "Q6_K": 1.25}
_BYTES |= {"F32": 4, "F16": 4, "BF16": 4}
_UNREAD = "transformers does not read from a file"
_INSTEAD = "load the model from a folder of transformers instead"


@dataclass(frozen=True)
class Header:
    """The metadata of a GGUF file.

    Attributes:
        file: its absolute path.
        metadata: by the names that the file has; arrays of texts as their lengths.
        names: of the tensors.
    """

    file: Path
    metadata: dict[str, Any]
    names: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> Header:
        """Read a file's metadata.

        Raises:
            LongspanError: it is no GGUF file, is cut off, or holds no language model that stands alone.
        """
        try:
            from transformers.integrations.gguf import read_gguf_metadata
        except ImportError:
            raise LongspanError(f"{file}: GGUF files need transformers 5.18 or later: {pip_install('gguf')}") from None
        try:
            metadata, names = read_gguf_metadata(str(file))
        except OSError:
            raise
        except Exception as error:  # of many kinds, by where the bytes stop making sense
            raise LongspanError(_unreadable(file, error)) from error
        kind, parts = metadata.get("general.type", "model"), metadata.get("split.count", 1)
        if kind != "model":
            raise LongspanError(f"{file}: holds no model but a part for one ({kind})")
        if parts > 1:
            raise LongspanError(f"{file}: is one of {parts} parts of a model; join them: llama-gguf-split --merge")
        if not names:
            raise LongspanError(f"{file}: has no tensors, only a vocabulary")
        header = cls(file.resolve(), metadata, names)
        if header.says("context_length") is None:
            raise LongspanError(f"{file}: does not state its window, {header.architecture}.context_length")
        return header

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    def says(self, what: str) -> Any:
        """What the file states of its model, by the name without the architecture; None if it does not."""
        return self.metadata.get(f"{self.architecture}.{what}")

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """``gguf.ReaderTensor`` by name, of the layers that the model runs."""
        from gguf import GGUFReader

        try:
            read = GGUFReader(self.file).tensors
        except OSError:
            raise
        except Exception as error:
            raise LongspanError(_unreadable(self.file, error)) from error
        return {tensor.name: tensor for tensor in read}

    @property
    def weights(self) -> dict[str, Any]:
        """``tensors`` without what are no weights."""
        return {name: tensor for name, tensor in self.tensors.items() if name != _FACTORS}

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(int(tensor.n_elements) for tensor in self.weights.values())

    @property
    def dtype(self) -> str:
        """The floating type that the file stores its matrices in; float32 if any is quantised."""
        from transformers.integrations.gguf import GgufHeader

        try:
            found = GgufHeader.from_file(str(self.file)).dtype
        except ValueError:  # a kind of quantised weights that it has no size for
            found = None
        return "float32" if found is None else str(found).removeprefix("torch.")

    @property
    def quantised(self) -> bool:
        """Whether any tensor is in blocks of codes."""
        from transformers.integrations.gguf import GgufHeader

        try:
            return bool(GgufHeader.from_file(str(self.file)).has_quantized_weights)
        except ValueError:  # a kind of blocks that it has no size for
            return True

    @property
    def has_experts(self) -> bool:
        """Whether some tensors are stacks of experts' matrices."""
        return any("_exps." in name for name in self.names)

    def packed_bytes(self, form: str) -> int:
        """About how many bytes the weights take packed in a form, of ``longspan.weights.FORMS``."""
        each = {"int8": 1.0625, "int4": 0.625}
        return int(
            sum(
                int(tensor.n_elements) * each.get(form, _BYTES.get(tensor.tensor_type.name, 1.0625))
                for tensor in self.weights.values()
            )
        )

    def check_weights(self) -> None:
        """Raise ``LongspanError`` if the file ends before its tensors do."""
        size = self.file.stat().st_size
        end = max(int(tensor.data_offset + tensor.n_bytes) for tensor in self.tensors.values())
        if end > size:
            raise LongspanError(f"{self.file}: is cut off: it has {size:,} bytes of {end:,}; fetch it again")

    def check_config(self, config: Any) -> None:
        """Raise ``LongspanError`` for what the file states of its model and the config has not."""
        own = f"{self.architecture}."
        stated = {key.removeprefix(own): value for key, value in self.metadata.items() if key.startswith(own)}
        stated.setdefault("attention.head_count_kv", stated.get("attention.head_count"))
        for what, value in stated.items():
            if what in _ASIDE or what in _ROPE or (value == 0 and what.startswith("expert_")):
                continue
            read = _read(what, config)
            if what == "attention.sliding_window" and read is None and value >= stated["context_length"]:
                continue
            if not _same(value, read):
                made = "" if read is None else f" (and takes {read} instead)"
                raise LongspanError(f"{self.file}: says {own}{what} = {value}, which {_UNREAD}{made}; {_INSTEAD}")


def rope_of(header: Header, config: Any) -> dict[str, Any] | None:
    """``rope_parameters`` of the scaled frequencies that a file states, which the reader leaves out; None if unscaled.

    Raises:
        LongspanError: they are of a kind that cannot be told from the file.
    """
    import numpy as np

    plain = dict(config.rope_parameters)
    kind = header.says("rope.scaling.type")
    if kind not in (None, "none"):
        if kind not in ("linear", "yarn") or any(isinstance(value, dict) for value in plain.values()):
            raise LongspanError(
                f"{header.file}: its rotary positions are scaled ({kind}) in a way that {_UNREAD}; {_INSTEAD}"
            )
        return plain | {theirs: header.says(ours) for ours, theirs in _ROPE.items() if header.says(ours) is not None}
    if _FACTORS not in header.names:
        return None
    factors = np.asarray(header.tensors[_FACTORS].data, dtype=np.float64)
    scaled = {"rope_type": "llama3", "factor": float(factors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled |= {"original_max_position_embeddings": 8192, "rope_theta": plain["rope_theta"]}
    if not np.allclose(factors, _llama3(scaled, 2 * factors.size), rtol=1e-4):
        raise LongspanError(
            f"{header.file}: {_FACTORS} are not Llama 3's factors of frequencies, and others {_UNREAD}; {_INSTEAD}"
        )
    return scaled


def _llama3(parameters: dict[str, Any], dim: int) -> np.ndarray:
    """By what Llama 3 divides each frequency, ``[dim / 2]``: long waves by ``factor``, short ones by 1."""
    import numpy as np

    frequencies = parameters["rope_theta"] ** -(np.arange(0, dim, 2) / dim)
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * np.pi)  # in the original window
    low, high, factor = (parameters[name] for name in ("low_freq_factor", "high_freq_factor", "factor"))
    share = np.clip((turns - low) / (high - low), 0, 1)  # 1: as trained
    divisors: np.ndarray = 1 / ((1 - share) / factor + share)
    return divisors


def tokenizer_splits(header: Header) -> Any:
    """The pre-tokenizer that a file's tokenizer has and transformers' reader does not give it; None if it does.

    Raises:
        LongspanError: the file has no tokenizer, or splits a text by a rule that transformers does not know.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    if "tokenizer.ggml.tokens" not in header.metadata:
        raise LongspanError(f"{header.file}: has no tokenizer")
    rule = header.metadata.get("tokenizer.ggml.pre")
    if header.metadata.get("tokenizer.ggml.model") != "gpt2" or rule in _AS_GPT2 or rule in GGUF_PRE_TOKENIZER_SPLITS:
        return None
    if rule not in _DIGITS_APART:
        raise LongspanError(
            f"{header.file}: its tokenizer splits a text by the rule {rule!r}, which {_UNREAD}; {_INSTEAD}"
        )
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _read(what: str, config: Any) -> Any:
    """What a config has of something that a file states; None if it has nothing."""
    ropes = getattr(config, "rope_parameters", None) or {}
    swa = ropes.get("sliding_attention", {})
    ropes = ropes.get("full_attention", ropes)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if what in ("attention.key_length", "attention.value_length"):
        return head
    if what == "rope.freq_base":
        return ropes.get("rope_theta")
    if what == "rope.freq_base_swa":
        return swa.get("rope_theta")
    if what == "rope.dimension_count":
        return int(head * (ropes.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1))
    found = (getattr(config, name, None) for name in _SAID.get(what, ()))
    return next((value for value in found if value is not None), None)


def _same(stated: Any, read: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) for value in (stated, read))
    return isclose(stated, read, rel_tol=1e-5) if numbers else bool(stated == read)


def _unreadable(file: Path, error: Exception) -> str:
    reason = one_line(error)
    if "magic bytes" in reason or not file.stat().st_size:
        return f"{file}: is not a GGUF file"
    return f"{file}: cannot be read as a GGUF file; it is cut off or damaged ({type(error).__name__}: {reason[:120]})"
