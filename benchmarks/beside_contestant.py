"""One contestant of beside.py, in a process of its own: it reads a text with a question, answers, and is asked again.

beside.py starts it, with the python that has the contestant, hands it a job as JSON and takes a line of JSON. Only what
the contestant needs is imported. With one thread times are those of the process, else of the wall.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile
from os.path import split
from pathlib import Path
from statistics import median
from typing import Any

Answering = Callable[[list[int]], Iterator[int]]
"""The tokens after a prompt, greedy and without an end; what the prompt before began with, too, is read once."""

PREFILL_CHUNK = 4096  # tokens that longspan's documents read at a time


def llama_cpp(job: dict[str, Any]) -> Answering:
    from llama_cpp import LLAMA_ROPE_SCALING_TYPE_YARN, Llama

    more = {}
    if job["length"] > job["window"]:
        more = {"rope_scaling_type": LLAMA_ROPE_SCALING_TYPE_YARN, "yarn_orig_ctx": job["window"]}
        more["rope_freq_scale"] = job["window"] / job["length"]
    threads = {"n_threads": job["threads"], "n_threads_batch": job["threads"]}
    llm = Llama(job["file"], n_ctx=job["length"], flash_attn=True, verbose=False, **threads, **more)
    return lambda ids: llm.generate(ids, temp=0.0)


def requantise(job: dict[str, Any]) -> None:
    """Write the job's file anew in a form of llama.cpp's, weights that were quantised before included."""
    import ctypes

    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{job['form']}")
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(job["file"].encode(), job["into"].encode(), ctypes.byref(params)):
        sys.exit(f"llama.cpp cannot write {job['file']} as {job['form']}")


def transformers(job: dict[str, Any]) -> Answering:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder, file = split(job["file"])
    config = AutoConfig.from_pretrained(folder, gguf_file=file)
    if job["length"] > job["window"]:
        factor = job["length"] / job["window"]
        yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": job["window"]}
        config.rope_parameters = {**config.rope_parameters, **yarn}
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, config=config, dtype=torch.float32, attn_implementation="sdpa"
    )
    return of_torch(model.eval(), job, lambda: DynamicCache(config=model.config), job["length"])


def longspan(job: dict[str, Any]) -> Answering:
    import longspan

    form, _, dtype = job["weights"].partition(",")
    as_told = {"dtype": form} if form == "float32" else {"weights": form, "dtype": dtype or "auto"}
    model, _ = longspan.load(job["file"], job["method"], device="cpu", quiet=True, length=job["length"], **as_told)
    return of_torch(model, job, lambda: longspan.new_cache(model), PREFILL_CHUNK)


def of_torch(model: Any, job: dict[str, Any], new_cache: Callable[[], Any], prefill_chunk: int) -> Answering:
    """The text is read in calls of its own, as that of a document is: then a cache goes back to its end for nothing."""
    import torch

    cache, last = None, list[int]()

    @torch.inference_mode()
    def read(ids: list[int]) -> int:
        more = {"use_cache": True, "logits_to_keep": 1, job["cache"]: cache}
        out = model(input_ids=torch.tensor([ids]), **more)
        return int(out.logits[0, -1].argmax())

    def answer(ids: list[int]) -> Iterator[int]:
        nonlocal cache, last
        kept = len([*takewhile(lambda two: two[0] == two[1], zip(last, ids, strict=False))])
        if hasattr(cache, "croppable"):  # longspan's: where it need not compute what is left anew
            kept = cache.croppable(kept)
        if kept:
            cache.crop(kept - cache.get_seq_length())
        else:
            cache = new_cache()
        last = ids
        cuts = sorted(n for n in {len(job["text"]), *range(0, len(ids), prefill_chunk)} if kept < n < len(ids))
        for start, stop in pairwise([kept, *cuts, len(ids)]):
            token = read(ids[start:stop])
        while True:
            yield token
            token = read([token])

    return answer


CONTESTANTS = {"llama.cpp": llama_cpp, "transformers": transformers, "longspan": longspan}
PACKAGES = {
    "llama.cpp": ["llama-cpp-python"],
    "transformers": ["torch", "transformers"],
    "longspan": ["longspan", "torch"],
}


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a token, seconds from the start of the program and of a question, and GiB at most."""
    now = time.process_time if job["threads"] == 1 else time.perf_counter
    began = now()
    answer = CONTESTANTS[job["name"]](job)
    next(answer(job["text"][-16:]))  # what the first call alone has to do
    loaded = now()
    prompt, again = (job["text"] + question for question in job["questions"])
    tokens, times = answer(prompt), [loaded]
    for _ in range(job["tokens"]):
        next(tokens)
        times.append(now())
    asked = now()
    next(answer(again))
    asked = now() - asked
    waits = [after - before for before, after in pairwise(times[1:])]
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    found = {
        "read": 1000 * (times[1] - loaded) / len(prompt),
        "next": 1000 * median(waits),
        "first": times[1] - began,
        "again": asked,
        "whole": times[-1] - loaded,
        "memory": int(peak) / 2**20,
    }
    versions = {name: importlib.metadata.version(name) for name in PACKAGES[job["name"]]}
    return {**{key: round(value, 4) for key, value in found.items()}, "versions": versions}


if __name__ == "__main__":
    job = json.load(sys.stdin)
    print(json.dumps(requantise(job) if "into" in job else measured(job)))
