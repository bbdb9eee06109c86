"""A text larger than memory: its keys and values are in memory-mapped files.

The operating system limits the writable memory of the process (Linux).

python examples/larger_than_memory.py
"""

import resource

import torch

import longspan
from longspan.bundled import heldout_text

TOKENS = 32_768  # 64 windows, 96 MiB of keys and values
LIMIT = 44 << 20  # further bytes of writable memory for the process

model, tokenizer = longspan.load_bundled()
text, middle = heldout_text(), heldout_text().index("\n", TOKENS)
needle = "\nThe pass key is 71428. Remember it. 71428 is the pass key.\n"
ids = tokenizer(text[:middle] + needle + text[middle:], return_tensors="pt")[
    "input_ids"
]
question = "\nWhat is the pass key? The pass key is"
end = tokenizer(question, return_tensors="pt", add_special_tokens=False)["input_ids"]


@torch.inference_mode()
def read(kv_tier: str) -> str:
    """Read the text and return the pass key, with the cache on this tier."""
    method = longspan.LongHeads(score="bounds")
    report = longspan.extend(model, method, kv_tier=kv_tier)
    cache, answer = longspan.new_cache(model), ""
    for chunk in (*ids[:, :TOKENS].split(512, dim=1), end):
        logits = model(chunk, cache=cache, logits_to_keep=1).logits[0, -1]
    while len(answer.strip()) < 5:
        answer += tokenizer.decode(logits.argmax())
        token = logits.argmax().view(1, 1)
        logits = model(token, cache=cache).logits[0, -1]
    size = report.kv_bytes_per_token * cache.get_seq_length()
    print(f"{size >> 20} MiB of keys and values:", cache.bytes_by_tier)
    return answer.strip()


model(ids[:, :600])  # one-time allocations happen before the limit
with open("/proc/self/status") as lines:
    used = next(int(line.split()[1]) << 10 for line in lines if "VmData" in line)
resource.setrlimit(resource.RLIMIT_DATA, (used + LIMIT, resource.RLIM_INFINITY))
try:
    print("in memory:", read("device"))
except RuntimeError as error:
    print("in memory:", str(error).partition("DefaultCPUAllocator: ")[2].split(":")[0])
print("in files:", read("disk"))
