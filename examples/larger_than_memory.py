"""A text larger than memory: its keys and values lie in files that are mapped into it.

The limit is the operating system's own, on memory that the process may write (Linux).

python examples/larger_than_memory.py
"""

import resource

import torch

import longspan
from longspan.bundled import heldout_text

TOKENS = 32_768  # 64 windows, 64 MiB of keys and values
ROOM = 44 << 20  # bytes that the process may take from now on

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
    """The pass key, with the cache on this tier."""
    method = longspan.LongHeads(score="bounds")
    report = longspan.extend(model, method, kv_tier=kv_tier)
    cache, answer = longspan.new_cache(model), ""
    for piece in (*ids[:, :TOKENS].split(512, dim=1), end):
        last = model(piece, past_key_values=cache, logits_to_keep=1).logits[0, -1]
    while len(answer.strip()) < 5:
        answer += tokenizer.decode(last.argmax())
        last = model(last.argmax().view(1, 1), past_key_values=cache).logits[0, -1]
    size = report.kv_bytes_per_token * cache.get_seq_length()
    print(f"{size >> 20} MiB of keys and values:", cache.bytes_by_tier)
    return answer.strip()


model(ids[:, :600])  # what is allocated once comes before the limit
with open("/proc/self/status") as lines:
    used = next(int(line.split()[1]) << 10 for line in lines if "VmData" in line)
resource.setrlimit(resource.RLIMIT_DATA, (used + ROOM, resource.RLIM_INFINITY))
try:
    print("in memory:", read("device"))
except RuntimeError as error:
    print("in memory:", str(error).partition("DefaultCPUAllocator: ")[2].split(":")[0])
print("in files:", read("disk"))
