"""Prompts that continue from what others read, in memory, in files and about a document, against reading all of it."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.methods import METHODS
from longspan.serve.caches import Caches

CHUNK, NEW, MEMORY = 256, 8, 3 * 2**20  # tokens of a call and of an answer; bytes in memory, of a few conversations
# Their tokens depend on the calls that read a text, as documented: those of a whole prompt are compared in one call.
BY_CALLS = ("dynamic-ntk", "esa", "infllm")
ALIKE = 2e-3  # of logits: the rounding of two ways


def read(model, cache, ids, edges):
    """The last logits ``[V]`` of ``ids`` ``[T]``, of which the cache has those before the first of ``edges``."""
    for start, stop in pairwise(edges):
        logits = model(input_ids=ids[None, start:stop], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return logits[0, -1]


def greedy(model, cache, ids, edges):
    """An answer's tokens ``[NEW]``, and the logits ``[NEW, V]`` that they are chosen by."""
    logits, tokens = [read(model, cache, ids, edges)], []
    for n in range(NEW):
        tokens.append(int(logits[-1].argmax()))
        if n < NEW - 1:
            one = torch.tensor([[tokens[-1]]])
            logits.append(model(input_ids=one, past_key_values=cache, use_cache=True).logits[0, -1])
    return torch.tensor(tokens), torch.stack(logits)


def borders(start, stop):
    return [*range(start, stop, CHUNK), stop]


def wrong(model, method, documents, caches, count, most, seed=0):
    """Prompts whose answer is another than that of a fresh cache; and how many of all prompts reused something.

    Args:
        most: tokens of a prompt and its answer.
    """
    draw, whole = random.Random(seed), load_bundled()[1](heldout_text()[:60_000], return_tensors="pt").input_ids[0]
    told = [(whole[:300], [0, 256, 300])]  # what was read and answered, and the calls that did
    found, reused = [], 0
    for number in range(count):
        base, calls = draw.choice(told[-12:])
        if documents and draw.random() < 0.3:
            base, calls = documents[0].contents.ids, None
        kept = len(base) if draw.random() < 0.6 or calls is None else draw.randrange(1, len(base))
        at = draw.randrange(len(whole) - 200)
        ids = torch.cat((base[:kept], whole[at : at + draw.randrange(1, 200)]))
        if len(ids) > most - NEW:  # leave the conversation in its first half
            told, ids = told[:1], ids[: most // 2]
        prefix = caches.take(ids, documents)
        reused += prefix.tokens > 0
        edges = borders(prefix.tokens, len(ids))
        tokens, logits = greedy(model, prefix.cache, ids, edges)
        # The calls of what is reused are those of the conversation it comes from, up to where it was cut.
        history = borders(0, prefix.tokens)[:-1] if calls is None else [at for at in calls if at < prefix.tokens]
        exact = method.partition(":")[0] not in BY_CALLS
        other = [0, len(ids)] if exact else sorted({0, *history, *edges})
        expected, by = greedy(model, longspan.new_cache(model), ids, other)
        same = int((tokens != expected).int().argmax()) if not torch.equal(tokens, expected) else NEW
        far = (logits[: same + 1] - by[: same + 1]).abs().max()
        if far > ALIKE:
            found.append((number, prefix.tokens, len(ids), same, float(far)))
        answered = torch.cat((ids, tokens[:-1]))
        caches.keep(answered, replace(prefix, tokens=len(answered)))
        told.append((answered, [*other, *range(len(ids) + 1, len(answered) + 1)]))
    return found, reused


@pytest.mark.long
@pytest.mark.parametrize("tier", ["device", "host", "disk"])
@pytest.mark.parametrize("method", METHODS)
@torch.inference_mode()
def test_what_is_reused_changes_no_answer(tmp_path, method, tier):
    model, tokenizer = load_bundled()
    report = longspan.extend(model, method, length=4_096, kv_tier=tier, kv_dir=tmp_path if tier == "disk" else None)
    folder = tmp_path / "conversations"
    folder.mkdir()
    caches = Caches(model, memory=MEMORY, directory=folder, disk=2**26)
    most = report.method.longest(report.window) or 2_000
    document = longspan.read(model, tokenizer, heldout_text()[70_000:][: min(most, 2_500)], prefill_chunk=CHUNK)
    count = int(os.environ.get("LONGSPAN_REUSED", "12"))
    found, reused = wrong(model, method, [document], caches, count, min(most, 2_000))
    assert found == [] and reused >= count // 2
