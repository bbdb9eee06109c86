"""A small Llama of our own, trained with a window of 512 tokens, and a text that it has never seen.

It is here so that every claim of the library can be tried in seconds on any machine, with no download. The
README beside this file says what it was trained on, how well it does, and what it is not good for.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from longspan.calibration import Calibration

FOLDER = Path(__file__).resolve().parent


def load_bundled(
    device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The bundled model, in eval mode on `device`, and its tokenizer.

    The weights are float32; `dtype` casts them. The window (`config.max_position_embeddings`) is 512 tokens.
    """
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=dtype or torch.float32, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER, local_files_only=True)
    return model.to(device).eval(), tokenizer


@lru_cache(maxsize=1)
def heldout_text() -> str:
    """About 323,000 characters of prose that the model was not trained on, paragraphs one to a line."""
    return (FOLDER / "heldout.txt").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def bundled_calibration() -> Calibration:
    """Reduced scores for the bundled model in float32, for ``longspan.extend(model, ..., calibration=...)``.

    Of 64 key channels a layer 8 are kept, 4 a key head. ``training/calibrate.py`` made it, from the training text.
    """
    from longspan.calibration import Calibration

    return Calibration.load(FOLDER / "calibration.safetensors")
