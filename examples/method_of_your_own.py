"""A method of your own, composed of a selection and a position map that are there: bounded Self-Extend.

Each query keeps the first tokens and the last ``recent`` ones, as StreamingLLM does, and sees those at grouped distances,
as Self-Extend does. So ``recent`` can be several windows long, and a token still costs the same at any length.

    python examples/method_of_your_own.py
"""

from dataclasses import dataclass

import torch

import longspan
from longspan.bundled import heldout_text
from longspan.methods.base import Method, require
from longspan.positions import GroupedBeyond
from longspan.selection import SinksAndRecent


@dataclass(frozen=True, kw_only=True)
class BoundedExtend(Method):
    """Keys ``j < S`` or ``i - j < W``, at Self-Extend's positions."""

    name = "bounded-extend"
    paper = "an example"
    sinks: int = 4
    recent: int = 2048
    group: int = 8

    def check(self) -> None:
        require("BoundedExtend: recent ≥ 1", self.recent >= 1, recent=self.recent)

    @property
    def selection(self) -> SinksAndRecent:  # keep(i, j): which keys does query i attend to?
        return SinksAndRecent(self.sinks, self.recent)

    @property
    def positions(self) -> GroupedBeyond:  # rel(i, j): how far away does it see them?
        return GroupedBeyond(near=128, group=self.group)

    def plain_rows(self, window: int) -> int:  # how many first rows equal the stock model's
        return min(128, self.recent)


model, tokenizer = longspan.load_bundled()
longspan.extend(model, BoundedExtend())
for tokens_back in (1_000, 3_000):
    text = heldout_text()[:12_000]
    place = text.index("\n", len(text) - 3 * tokens_back)
    needle = "\nThe pass key is 71428. Remember it. 71428 is the pass key.\n"
    prompt = f"{text[:place]}{needle}{text[place:]}\nWhat is the pass key? The pass key is"
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        out = model.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    print(f"about {tokens_back:,} tokens back:", tokenizer.decode(out[0, inputs["input_ids"].shape[1] :]).strip())
