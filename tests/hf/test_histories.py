"""Whatever a cache went through, the logits are those of the tokens that remain, given once."""

from __future__ import annotations

import copy
import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import longspan
from longspan.hf import tiers
from longspan.methods import METHODS
from support.hf_models import left_padded, make, prompts

MOST, ROWS = 180, 4  # tokens and rows that a history keeps; the window is 64
SPECS = [
    *METHODS,
    "dca:length_scale=0.1",
    "longheads:score=token_max",
    "longheads:score=bounds,chunk_length=8,num_chunks=4,remap=far",
    "lm-infinite:middle_top_k=3,from_layer=0",
    "esa:initial=2,local=6,top_k=9,query_chunk=16,share=group,remap=slots,dense=kept",
    "esa:initial=1,local=20,top_k=9,query_chunk=7,remap=dca",
    "infllm:initial=2,local=6,block=3,blocks=2,representatives=2,query_chunk=16,dense=kept",
]
TIERS = ["device", "host", "disk", "auto"]


class History(RuleBasedStateMachine):
    """A cache beside a list of the tokens that remain and of where the calls that brought them ended."""

    model = None
    reference = None  # the same model, whose caches stay on the device
    follows_call = False
    free = [10**12]

    @initialize(pads=st.lists(st.sampled_from([0, 0, 3, 11]), min_size=1, max_size=3), seed=st.integers(0, 99))
    def begin(self, pads, seed):
        self.free[0] = 10**12
        self.cache = longspan.new_cache(self.model)
        self.pads, self.seed, self.kept = pads, 1000 * seed, 0  # inputs that are kept, and so can be dropped anywhere
        self.ids, self.stops = torch.empty(len(pads), 0, dtype=torch.int64), []
        self.give(30)

    def give(self, tokens, guesses=0):
        self.seed += 1
        new = prompts(len(self.pads), tokens, seed=self.seed)
        past = self.ids.shape[1]
        self.ids = torch.cat((self.ids, new), dim=1)
        self.stops += [past + tokens - n for n in range(guesses, -1, -1)]
        self.cache.calls.guesses = guesses
        self.kept = min(64, self.kept + tokens)
        return self.run(self.model, self.cache, past, past + tokens)

    def run(self, model, cache, start, stop):
        ids, mask, _ = left_padded(self.ids, [min(pad, stop) for pad in self.pads])
        mask = mask[:, :stop] if any(self.pads) else None
        with torch.no_grad():
            return model(ids[:, start:stop], attention_mask=mask, past_key_values=cache).logits

    @property
    def room(self):
        return MOST - self.ids.shape[1]

    @precondition(lambda self: self.room > 0)
    @rule(tokens=st.sampled_from([2, 3, 5, 17, 30, 61, 90]))
    def read(self, tokens):
        self.give(min(tokens, self.room))

    @precondition(lambda self: self.room > 0)
    @rule(tokens=st.integers(1, 5))
    def write(self, tokens):
        for _ in range(min(tokens, self.room)):
            self.give(1)

    @precondition(lambda self: self.room > 9)
    @rule(guesses=st.integers(1, 9), wrong=st.integers(0, 9))
    def guess(self, guesses, wrong):
        self.give(guesses + 1, guesses)
        self.crop(min(wrong, guesses))

    @rule(tokens=st.sampled_from([1, 1, 2, 4, 7, 19, 64, 130]))
    def crop(self, tokens):
        held = self.ids.shape[1]
        left = max(held - tokens, 0)
        try:
            self.cache.crop(-tokens)
        except longspan.CacheError as error:
            assert "whose inputs are gone" in str(error) and tokens > self.kept
            assert self.cache.get_seq_length() == held
            return
        self.kept = max(self.kept - tokens, 0)
        self.ids, self.stops = self.ids[:, :left], [*(x for x in self.stops if x < left), *([left] if left else [])]
        if not left:
            self.give(12)
        assert {layer.get_seq_length() for layer in self.cache.layers} == {self.ids.shape[1]}

    @rule(by=st.sampled_from([1, 9, 64]))
    def crop_where_nothing_is_computed_again(self, by):
        held = self.ids.shape[1]
        if left := self.cache.croppable(max(held - by, 0)):
            self.crop(held - left)

    @rule(rows=st.lists(st.integers(0, 99), min_size=1, max_size=ROWS), mask=st.booleans())
    def select(self, rows, mask):
        rows = torch.tensor(rows) % len(self.pads)
        if mask:
            kept = torch.zeros(len(self.pads), dtype=torch.bool).index_fill(0, rows, True)
            rows = kept.nonzero().flatten()
            self.cache.batch_select_indices(kept)
        else:
            self.cache.reorder_cache(rows)
        self.ids, self.pads = self.ids[rows], [self.pads[row] for row in rows.tolist()]

    @precondition(lambda self: len(self.pads) <= ROWS // 2)
    @rule()
    def repeat(self):
        self.cache.batch_repeat_interleave(2)
        self.ids, self.pads = self.ids.repeat_interleave(2, dim=0), [pad for pad in self.pads for _ in range(2)]

    @rule()
    def copied(self):
        """What becomes of the cache that was copied changes nothing in the copy."""
        self.cache, other = copy.deepcopy(self.cache), self.cache
        other.crop(-1)
        other.reset()

    @rule()
    def memory_runs_short(self):
        self.free[0] = 0

    @precondition(lambda self: self.room > 0)
    @rule()
    def look(self):
        """The logits of new tokens are those that they have after the tokens that remain, given once."""
        found = self.give(min(3, self.room))
        fresh, past = longspan.new_cache(self.reference), 0
        *pieces, last = self.stops
        for stop in pieces if self.follows_call else pieces[-1:]:
            self.run(self.reference, fresh, past, stop)
            past = stop
        expected = self.run(self.reference, fresh, past, last)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)

    def teardown(self):
        if hasattr(self, "cache") and self.room > 0:
            self.look()


def histories(spec, tier, count, folder, monkeypatch):
    model, reference = make("llama"), make("llama")
    longspan.extend(reference, spec)
    report = longspan.extend(model, spec, kv_tier=tier, kv_dir=folder if tier in ("disk", "auto") else None)
    follows = report.method.call_dependent or report.method.length_dependent
    own = type(
        "OwnHistory", (History,), {"model": model, "reference": reference, "follows_call": follows, "free": [10**12]}
    )
    # The history sets how much memory is free.
    monkeypatch.setattr(tiers, "free_memory", lambda device: own.free[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the cache .* memory|.*keys and values move from tier")
        run_state_machine_as_test(
            own,
            settings=settings(
                max_examples=count,
                stateful_step_count=10,
                phases=[Phase.generate],  # a long history is as good to read as its shortest form, which takes minutes
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.parametrize("spec", SPECS)
def test_a_few_histories(spec, tmp_path, monkeypatch):
    histories(spec, TIERS[SPECS.index(spec) % len(TIERS)], 4, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("spec", SPECS)
def test_many_histories(spec, tier, tmp_path, monkeypatch):
    # `make test-exhaustive` runs 500, which takes hours.
    histories(spec, tier, int(os.environ.get("LONGSPAN_HISTORIES", "12")), tmp_path, monkeypatch)
