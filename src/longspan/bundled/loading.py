"""The bundled model and its tokenizer."""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from longspan.bundled.folder import FOLDER


def load_bundled(
    device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The bundled model, in eval mode on `device`, and its tokenizer.

    The weights are float32; `dtype` casts them. The window (`config.max_position_embeddings`) is 512 tokens.
    """
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=dtype or torch.float32, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER, local_files_only=True)
    return model.to(device).eval(), tokenizer
