"""A batch of prompts of different lengths: each row answers as it does by itself.

python examples/left_padded_batch.py
"""

import torch

import longspan
from longspan.bundled import heldout_text

model, tokenizer = longspan.load_bundled()
tokenizer.pad_token = tokenizer.eos_token
tokenizer.padding_side = "left"  # as generation always wants it

longspan.extend(model, longspan.LongHeads(score="bounds"))


def prompt(key: int, characters: int) -> str:
    """Prose of so many characters with a pass key a third of the way in."""
    text = heldout_text()[:characters]
    place = text.index("\n", characters // 3)
    needle = f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
    question = "\nWhat is the pass key? The pass key is"
    return text[:place] + needle + text[place:] + question


def generate(prompts: list[str]) -> list[str]:
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=8, do_sample=False
        )
    return tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)


prompts = [prompt(43917, 3_000), prompt(80326, 6_000), prompt(15794, 12_000)]
together = generate(prompts)
apart = [generate([one])[0] for one in prompts]

for one, text in zip(prompts, together, strict=True):
    print(f"{len(tokenizer(one)['input_ids'])} tokens: {text.strip()}")
print("the same one by one:", together == apart)
