"""A method of your own, from a selection and a position map that are there already.

Each query keeps the first tokens and the last ``recent`` ones, as StreamingLLM does,
and sees them at grouped distances, as Self-Extend does. So ``recent`` can be several
windows, and a token still attends to as many keys however long the text is.

python examples/method_of_your_own.py
"""

from dataclasses import dataclass

import torch

import longspan
from longspan.bundled import heldout_text
from longspan.positions import GroupedBeyond
from longspan.selection import SinksAndRecent


@dataclass(frozen=True, kw_only=True)
class BoundedExtend(longspan.Method):
    """Keys ``j < S`` or ``i - j < W``, at Self-Extend's positions."""

    name = "bounded-extend"
    paper = "an example"
    sinks: int = 4
    recent: int = 2048
    near: int = 128
    group: int = 8

    def selection(self, window: int) -> SinksAndRecent:  # does query i attend to key j?
        return SinksAndRecent(self.sinks, self.recent)

    def positions(self, window: int) -> GroupedBeyond:  # how far away does it see it?
        return GroupedBeyond(self.near, self.group)

    def plain_rows(self, window: int) -> int:  # first rows that equal the stock model's
        return min(self.near, self.sinks + self.recent)


model, tokenizer = longspan.load_bundled()
print(longspan.extend(model, BoundedExtend()))

text = heldout_text()[:12_000]
needle = "\nThe pass key is 71428. Remember it. 71428 is the pass key.\n"
question = "\nWhat is the pass key? The pass key is"
for where in ("inside", "outside"):  # the last 2,048 tokens
    place = text.index(
        "\n", len(text) * 3 // 4 if where == "inside" else len(text) // 4
    )
    ids = tokenizer(
        text[:place] + needle + text[place:] + question, return_tensors="pt"
    )
    with torch.inference_mode():
        out = model.generate(ids["input_ids"], max_new_tokens=8, do_sample=False)
    print(f"{where}:", tokenizer.decode(out[0, ids["input_ids"].shape[1] :]).strip())
