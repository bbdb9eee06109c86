"""The model under test: what of it a sample depends on, and what a reader wants to know."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel

from longspan.bundled import FOLDER
from longspan.documents.fingerprint import config_of
from longspan.hf.calibration.check import dtype_name, model_name
from longspan.model.weights import weights_hash
from longspan.model.window import window_of
from longspan.text.encode import tokenizer_hash


@dataclass(frozen=True)
class Subject:
    """The model under test.

    Attributes:
        window: its trained window, in tokens.
        sha256: of the names, types and bytes of its weights.
        tokenizer_sha256: of all that decides how its tokenizer turns text into tokens.
        name: what to call it; never a path.
        crossover: the length in tokens at which attention to everything costs as much as all the rest.
        config_sha256: of its config and of the tokens that end an answer; empty if they are the bundled model's,
            whose samples were measured before configs counted.
    """

    window: int
    sha256: str
    tokenizer_sha256: str = ""
    name: str = ""
    dtype: str = ""
    parameters: int = 0
    crossover: float = 4096.0
    config_sha256: str = ""

    @classmethod
    def of(
        cls, model: PreTrainedModel, tokenizer: Any = None, *, window: int | None = None, sha256: str | None = None
    ) -> Subject:
        """The subject of a model; ``window`` unless the config is right about it, ``sha256`` unless it is in memory."""
        return cls(
            window=window_of(model) if window is None else window,
            sha256=weights_hash(model) if sha256 is None else sha256,
            tokenizer_sha256="" if tokenizer is None else tokenizer_hash(tokenizer),
            name=model_name(model),
            dtype=dtype_name(model),
            config_sha256=_config_hash(model.config, model.generation_config),
            parameters=model.num_parameters(),
            crossover=_crossover(model),
        )


def _config_hash(config: PreTrainedConfig, generation: GenerationConfig | None) -> str:
    def what(config: PreTrainedConfig, generation: GenerationConfig | None) -> str:
        ends = None if generation is None else generation.eos_token_id
        return json.dumps([config_of(config), ends], sort_keys=True)

    own = what(config, generation)
    if own == what(LlamaConfig.from_pretrained(FOLDER), GenerationConfig.from_pretrained(FOLDER)):
        return ""
    return hashlib.sha256(own.encode()).hexdigest()


def _crossover(model: PreTrainedModel) -> float:
    """A token costs 2 operations a weight, and 2 a key on average for each of a layer's channels, causally masked."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    weights = model.num_parameters(exclude_embeddings=True)
    crossover: float = max(weights / (config.num_hidden_layers * heads * size), 1.0)
    return crossover
