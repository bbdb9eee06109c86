"""A batch of prompts of different lengths: each row answers as it does alone.

python examples/left_padded_batch.py
"""

import torch

import longspan
from longspan.bundled import heldout_text

model, tokenizer = longspan.load_bundled()
tokenizer.pad_token = tokenizer.eos_token
tokenizer.padding_side = "left"  # generation requires left padding

longspan.extend(model, longspan.LongHeads(score="bounds"))


def prompt(key: int, characters: int) -> str:
    """Prose with a pass key after a third of its characters, and the question."""
    text = heldout_text()[:characters]
    split = text.index("\n", characters // 3)
    needle = f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
    question = "\nWhat is the pass key? The pass key is"
    return text[:split] + needle + text[split:] + question


def generate(prompts: list[str]) -> list[str]:
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=8, do_sample=False
        )
    return tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)


prompts = [prompt(43917, 3_000), prompt(80326, 6_000), prompt(15794, 14_000)]
batched = generate(prompts)
separate = [generate([text])[0] for text in prompts]

for text, answer in zip(prompts, batched, strict=True):
    print(f"{len(tokenizer(text)['input_ids'])} tokens: {answer.strip()}")
print("the same one by one:", batched == separate)
