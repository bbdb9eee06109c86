"""Extend a model and generate: a pass key is found at four times the window that the model was trained on.

    python examples/extend_and_generate.py
"""

import torch

import longspan
from longspan.bundled import heldout_text

model, tokenizer = longspan.load_bundled()  # a small Llama with a window of 512 tokens; yours comes from_pretrained
window = model.config.max_position_embeddings

# A book with one sentence of interest in its middle.
book = heldout_text()[: 3 * 4 * window]
half = book.index("\n", len(book) // 2)
needle = "\nThe pass key is 71428. Remember it. 71428 is the pass key.\n"
prompt = f"{book[:half]}{needle}{book[half:]}\nWhat is the pass key? The pass key is"
inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)


def answer() -> str:
    with torch.inference_mode():
        out = model.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :]).strip()


print(f"{inputs['input_ids'].shape[1]:,} tokens, window {window}")
print("stock:", answer())

print(longspan.extend(model, "dca"))  # the report: what was attached, with every parameter
print("dca:", answer())

longspan.restore(model)  # the model as it was, to the bit
