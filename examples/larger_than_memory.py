"""A text larger than memory: keys and values lie in mapped files, under a limit that they would not fit into.

The limit is the operating system's own, on the memory that this process may write to (Linux).

    python examples/larger_than_memory.py
"""

import resource
import tempfile

import torch

import longspan
from longspan.bundled import heldout_text

TOKENS = 32_768  # 64 windows; 64 MiB of keys and values
ROOM = 44 << 20  # bytes that the process may take from now on

model, tokenizer = longspan.load_bundled()
text = heldout_text()
needle = "\nThe pass key is 71428. Remember it. 71428 is the pass key.\n"
half = text.index("\n", TOKENS)
ids = tokenizer(text[:half] + needle + text[half:], return_tensors="pt")["input_ids"][:, :TOKENS]
question = tokenizer("\nWhat is the pass key? The pass key is", return_tensors="pt", add_special_tokens=False)


def used() -> int:
    """Bytes of private memory that the process has asked for."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def read(kv_tier: str, folder: str | None = None) -> str:
    report = longspan.extend(model, longspan.LongHeads(score="bounds"), kv_tier=kv_tier, kv_dir=folder)
    cache = longspan.new_cache(model)
    with torch.inference_mode():
        for piece in (*ids.split(512, dim=1), question["input_ids"]):
            last = model(piece, past_key_values=cache, logits_to_keep=1).logits[0, -1]
        digits = ""
        for _ in range(6):
            token = last.argmax()
            digits += tokenizer.decode(token)
            last = model(token.view(1, 1), past_key_values=cache).logits[0, -1]
    print(f"{report.kv_bytes_per_token * cache.get_seq_length() >> 20} MiB of keys and values, {cache.bytes_by_tier}")
    return digits.strip()


model(ids[:, :600])  # what is allocated once, such as threads, comes before the limit
resource.setrlimit(resource.RLIMIT_DATA, (used() + ROOM, resource.RLIM_INFINITY))
try:
    print("in memory:", read("device"))
except RuntimeError as error:
    print("in memory:", str(error).split("DefaultCPUAllocator: ")[-1].split(".")[0])
with tempfile.TemporaryDirectory() as folder:
    print("in files:", read("disk", folder))
