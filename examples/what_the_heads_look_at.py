"""The chunks that LongHeads chooses, and whether the answer is among them.

python examples/what_the_heads_look_at.py
"""

import torch

import longspan
from longspan.bundled import heldout_text

model, tokenizer = longspan.load_bundled()
report = longspan.extend(model, longspan.LongHeads(score="bounds"))
size = report.method.chunk_length  # by default a sixteenth of the window

text = heldout_text()[:12_000]
middle = text.index("\n", len(text) // 2)
before = text[:middle] + "\nThe pass key is"
after = " 71428. Remember it. 71428 is the pass key.\n" + text[middle:]
question = "\nWhat is the pass key? The pass key is"
inputs = tokenizer(before + after + question, return_tensors="pt")
answer = len(tokenizer(before)["input_ids"]) // size  # the chunk with the digits

with torch.inference_mode(), longspan.record(model) as trace:
    model(inputs["input_ids"], logits_to_keep=1)

print(f"{inputs['input_ids'].shape[1]} tokens in chunks of {size}")
print(f"the answer is in chunk {answer}")
for choice in trace.at():  # the choice of each layer for the last token
    for head, chunks in enumerate(choice.units.tolist()):
        best = choice.scored_from + int(choice.scores[head].argmax())
        state = "chosen" if answer in chunks else "not chosen"
        print(
            f"layer {choice.layer}, key head {head}: best chunk {best}, answer {state}"
        )
        print("   ", *chunks)
