"""Extend a model and generate: it finds a pass key at four times its window.

python examples/extend_and_generate.py
"""

import torch

import longspan
from longspan.bundled import heldout_text

# A small Llama with a window of 512 tokens; use `from_pretrained` for your model.
model, tokenizer = longspan.load_bundled()

# Prose with a pass key in its middle.
text = heldout_text()[:8_000]
middle = text.index("\n", len(text) // 2)
needle = "\nThe pass key is 71428. Remember it. 71428 is the pass key.\n"
question = "\nWhat is the pass key? The pass key is"
inputs = tokenizer(
    text[:middle] + needle + text[middle:] + question, return_tensors="pt"
)


def answer() -> str:
    with torch.inference_mode():
        out = model.generate(inputs["input_ids"], max_new_tokens=8, do_sample=False)
    return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :]).strip()


print(inputs["input_ids"].shape[1], "tokens")
print("stock:", answer())

print(longspan.extend(model, "dca"))  # a report: layers, window, parameters
print("dca:", answer())

longspan.restore(model)  # the stock model again, bit for bit
print("restored:", answer())
