"""Prompts stay what they are, token for token, while a task's version does: results of releases are compared."""

from __future__ import annotations

import hashlib
import json

import pytest

from longspan_eval.tasks import TASKS

# The version and a digest of some prompts, one token a byte. Where prompts are to change, the version grows too, so
# that what was measured before is not mixed with what is measured after.
PROMPTS = {
    "passkey": (2, "e1c106380e9d0d60"),
    "passkey-prose": (2, "7e400af254917497"),
    "facts": (1, "8003ccb405210f92"),
    "key-value": (1, "070a5438c7f1e8e4"),
    "vt-2-hops": (1, "b6db3fcb3ffd0126"),
    "vt-2-hops-2-chains": (1, "4883892e5dd600d2"),
    "common-words": (1, "b64d77a0d178387e"),
    "needle": (1, "202a637731def598"),
    "multi-needle": (2, "40c37ac9dcdfbe10"),
    "multi-needle-3": (2, "e20f00d90d0db66a"),
    "counting-stars": (3, "89957a3dc84f12ee"),
    "counting-stars-16": (3, "a8d66902ed4767e9"),
    "counting-stars-reasoning": (3, "deeb4de452eddc34"),
    "infinitebench-kv": (1, "e10abd623e853d44"),
    "infinitebench-number": (1, "0ecb074532c8d4a4"),
    "infinitebench-passkey": (1, "6dd5e2a295096356"),
    "infinitebench-math-find": (1, "55c61fa83b3d70f0"),
    "ruler-niah-single-1": (1, "b40c26cb95a211ae"),
    "ruler-niah-single-2": (1, "f2a7d6a02af5b424"),
    "ruler-niah-single-3": (1, "7f12e6d51d54c18d"),
    "ruler-niah-multikey-1": (1, "15eb5c32d46a2e78"),
    "ruler-niah-multikey-2": (1, "47ac38c4611ea755"),
    "ruler-niah-multikey-3": (1, "1b68b56ed6a98c15"),
    "ruler-niah-multivalue": (1, "052651cc3baa380a"),
    "ruler-niah-multiquery": (1, "bd8a341e4564582f"),
    "ruler-vt": (1, "73b0ceadb3382b7a"),
    "ruler-cwe": (1, "43a3af5d1d6376ce"),
    "ruler-fwe": (1, "7c282ba1ca83f6db"),
}


def digest(task, tokenizer):
    made = [
        task.build(tokenizer, length=length, seed=seed, depth=depth)
        for seed, length in ((0, 9000), (1, 9001))
        for depth in ((None, 0.37, 1.0) if task.at_depths else (None,))
    ]
    told = [[one.input_ids, one.references, one.seed, one.depth, one.placed] for one in made]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def test_every_synthetic_task_has_a_digest():
    assert set(PROMPTS) == {
        name for name, task in TASKS.items() if task.data is None and not name.endswith("-official")
    }


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_change_with_the_version_alone(name, byte_tokenizer):
    assert (TASKS[name].version, digest(TASKS[name], byte_tokenizer)) == PROMPTS[name]
