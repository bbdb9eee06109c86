"""What the heads look at: which chunks LongHeads chooses for the question, and whether the answer is among them.

    python examples/what_the_heads_look_at.py
"""

import torch

import longspan
from longspan.bundled import heldout_text

model, tokenizer = longspan.load_bundled()
report = longspan.extend(model, longspan.LongHeads(score="bounds"))
size = report.method.chunk_length

text = heldout_text()[:12_000]
place = text.index("\n", len(text) // 2)
before = f"{text[:place]}\nThe pass key is"
prompt = f"{before} 71428. Remember it. 71428 is the pass key.\n{text[place:]}\nWhat is the pass key? The pass key is"
inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
answer_chunk = len(tokenizer(before)["input_ids"]) // size  # the chunk that holds the digits

with torch.inference_mode(), longspan.record(model) as trace:
    model(**inputs, logits_to_keep=1)

print(f"{inputs['input_ids'].shape[1]} tokens in chunks of {size}; the answer is in chunk {answer_chunk}")
for choice in trace.at():  # one for each layer, of the last token
    for head, units in enumerate(choice.units.tolist()):
        best = int(choice.scores[head].argmax()) + choice.scored_from
        found = "the answer is among them" if answer_chunk in units else ""
        print(f"layer {choice.layer}, key head {head}: chunks {units}, best {best}  {found}")
