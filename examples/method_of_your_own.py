"""A new method, composed of an existing selection and an existing position map.

Each query attends to the first tokens and the last ``recent`` tokens, as in
StreamingLLM, at the grouped positions of Self-Extend. So ``recent`` can be several
windows, and the number of keys per query does not grow with the text.

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

    def selection(self, window: int) -> SinksAndRecent:  # the keys of each query
        return SinksAndRecent(self.sinks, self.recent)

    def positions(self, window: int) -> GroupedBeyond:  # their relative positions
        return GroupedBeyond(self.near, self.group)

    def plain_queries(
        self, window: int
    ) -> int:  # first queries with all true distances
        return min(self.near, self.sinks + self.recent)


model, tokenizer = longspan.load_bundled()
print(longspan.extend(model, BoundedExtend()))

text = heldout_text()[:12_000]
needle = "\nThe pass key is 71428. Remember it. 71428 is the pass key.\n"
question = "\nWhat is the pass key? The pass key is"
# The pass key is inside or outside of the last 2,048 tokens.
for label, start in (("inside", len(text) * 3 // 4), ("outside", len(text) // 4)):
    split = text.index("\n", start)
    prompt = text[:split] + needle + text[split:] + question
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        out = model.generate(ids, max_new_tokens=8, do_sample=False)
    print(f"{label}:", tokenizer.decode(out[0, ids.shape[1] :]).strip())
