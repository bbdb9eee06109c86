"""Drafted answers are those of plain decoding: tokens, streams, what stops them, and what they leave in a cache."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from transformers import LlamaForCausalLM, LogitsProcessor, StoppingCriteria, StoppingCriteriaList

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.drafting import DraftLengths, Proposal
from longspan.hf.attach import attached_to
from longspan.methods import METHODS
from support.hf_models import left_padded, make, prompts

NEW = 40
PADDED = {"one row": [0], "one padded row": [7], "rows": [0, 0], "unequally padded rows": [0, 11, 3]}


class Scripted:
    """Proposes what the plain answer has next, a wrong token among them now and then."""

    def __init__(self, text, vocabulary):
        self.text, self.vocabulary = text, vocabulary

    def begin(self, tokens):
        assert torch.equal(tokens, self.text[: len(tokens)])

    def propose(self, tokens, most):
        n, most = len(tokens), min(most, 1 + len(tokens) % 6)
        found = self.text[n : n + most].tolist()
        found = [(x + 1) % self.vocabulary if (n + k) % 5 == 0 else x for k, x in enumerate(found)]
        return Proposal(tuple(found), "scripted")


@pytest.fixture
def all_of_them(monkeypatch):
    """Every proposal is verified whole, whatever it costs."""
    monkeypatch.setattr(DraftLengths, "affords", True)
    monkeypatch.setattr(DraftLengths, "length", lambda self, kind, most: min(most, 15) if self._plain else 0)


def scripted(model, plain):
    """Draft what the plain answer says, with errors."""
    drafting, rows = attached_to(model).drafting, iter([*plain] * 2)
    drafting.drafter = lambda: Scripted(next(rows), model.config.vocab_size)
    drafting.take_back = lambda drafters: None


def answer(model, ids, mask=None, **options):
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None} | options
    torch.manual_seed(5)
    out = model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **settings)
    return out.sequences, out.past_key_values


def held(cache):
    """All tensors that a cache keeps of its tokens."""
    for store in cache.stores:
        yield from (x[:, :, : store.length].clone() for x in store.lying)


def assert_same_cache(ours, plain):
    assert ours.get_seq_length() == plain.get_seq_length() and ours.padding == plain.padding
    for a, b in zip(held(ours), held(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("all_of_them")
@pytest.mark.parametrize(("padding", "sampled"), [*((name, False) for name in PADDED), ("unequally padded rows", True)])
@pytest.mark.parametrize("method", [*METHODS, "dca:length_scale=0.1"])
def test_tokens_and_cache_are_those_of_plain_decoding(method, sampled, padding):
    model, pads = make("llama"), PADDED[padding]
    ids, mask, _ = left_padded(prompts(len(pads), 120), pads)
    options = {"do_sample": True, "temperature": 0.8, "top_k": 40} if sampled else {}
    longspan.extend(model, method)
    plain, cache = answer(model, ids, mask, **options)
    longspan.extend(model, method, draft="lookup")
    scripted(model, plain)
    drafted, own = answer(model, ids, mask, **options)
    assert torch.equal(drafted, plain)
    assert_same_cache(own, cache)
    drafts = longspan.drafts_of(model)
    assert 0 < drafts.accepted < drafts.drafted and drafts.verifications <= NEW // 2


@pytest.mark.usefixtures("all_of_them")
@pytest.mark.parametrize("tier", ["host", "disk", "auto"])
@pytest.mark.parametrize("method", ["dca", "longheads", "esa"])
def test_on_every_tier(method, tier):
    model, ids = make("llama"), prompts(1, 120)
    longspan.extend(model, method)
    plain, _ = answer(model, ids)
    longspan.extend(model, method, kv_tier=tier, draft="lookup")
    scripted(model, plain)
    assert torch.equal(answer(model, ids)[0], plain) and longspan.drafts_of(model).accepted


@pytest.mark.usefixtures("all_of_them")
@pytest.mark.parametrize("draft", ["lookup", "auto"])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_looked_up_changes_no_token(method, draft):
    """Real text beyond the window, part of which comes twice."""
    model, tokenizer = load_bundled()
    ids = tokenizer(heldout_text()[:9000], return_tensors="pt").input_ids[:, :700]
    ids[:, -80:] = ids[:, 100:180]
    longspan.extend(model, method)
    plain, _ = answer(model, ids)
    longspan.extend(model, method, draft=draft)
    assert torch.equal(answer(model, ids)[0], plain) and longspan.drafts_of(model).accepted


@pytest.mark.usefixtures("all_of_them")
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 3])
def test_packed_weights(weights, rows):
    model, tokenizer = longspan.load("bundled", weights=weights, quiet=True)
    ids = tokenizer(heldout_text()[:4000], return_tensors="pt").input_ids[0, : 300 * rows].reshape(rows, 300)
    longspan.extend(model, "dca")
    plain, _ = answer(model, ids)
    longspan.extend(model, "dca", draft="lookup")
    scripted(model, plain)
    assert torch.equal(answer(model, ids)[0], plain) and longspan.drafts_of(model).accepted


def test_more_than_eight_rows_are_decoded_plainly():
    model, ids = make("llama"), prompts(1, 40).repeat(9, 1)
    longspan.extend(model, "dca", draft="lookup")
    answer(model, ids)
    assert longspan.drafts_of(model).drafted == 0


class Streamed:
    """Notes what a streamer is given."""

    def __init__(self):
        self.given, self.ended = [], 0

    def put(self, value):
        self.given.append(value.tolist())

    def end(self):
        self.ended += 1


class LessOften(LogitsProcessor):
    """Each token is the more unlikely the more often it came, and all of it depends on how often it was called."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids.shape[1])
        counts = torch.zeros_like(scores).scatter_add_(1, input_ids, torch.ones_like(input_ids, dtype=scores.dtype))
        return scores - (0.05 + 0.01 * (len(self.seen) % 3)) * counts


class StopsAt(StoppingCriteria):
    """Stops at its n-th call."""

    def __init__(self, calls):
        self.seen, self.calls = [], calls

    def __call__(self, input_ids, scores, **more):
        self.seen.append(input_ids.shape[1])
        return torch.full((len(input_ids),), len(self.seen) >= self.calls)


def cases(tokenizer, plain, prompt):
    """Options whose effect falls inside of accepted runs, made anew for each answer."""
    own = plain[0, prompt:].tolist()
    late = [token for n, token in enumerate(own) if token not in own[:n]][6:]  # those that come late for the first time
    return {
        "an end": lambda: {"eos_token_id": late[0]},
        "several ends": lambda: {"eos_token_id": [late[2], late[1]]},
        "no end before": lambda: {"eos_token_id": own[3], "min_new_tokens": 20},
        "a stop string": lambda: {"stop_strings": [tokenizer.decode(late[1])], "tokenizer": tokenizer},
        "length": lambda: {"max_new_tokens": 11},
        "one token": lambda: {"max_new_tokens": 1},
        "penalty": lambda: {"repetition_penalty": 1.3},
        "no n-gram twice": lambda: {"no_repeat_ngram_size": 2},
        "a processor": lambda: {"logits_processor": [LessOften()]},
        "a criterion": lambda: {"stopping_criteria": StoppingCriteriaList([StopsAt(13)])},
        "sampling": lambda: {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
        "several samples": lambda: {"do_sample": True, "num_return_sequences": 3},
        "prefill in pieces": lambda: {"prefill_chunk_size": 100},
    }


@pytest.mark.usefixtures("all_of_them")
@pytest.mark.parametrize("case", cases(None, torch.zeros(1, 99), 0))
def test_what_follows_the_tokens_sees_them_one_by_one(case):
    model, tokenizer = load_bundled()
    ids = tokenizer(heldout_text()[:4000], return_tensors="pt").input_ids[:, :300]
    longspan.extend(model, "dca")
    first, _ = answer(model, ids, repetition_penalty=1.2)
    options = cases(tokenizer, first, ids.shape[1])[case]
    found = []
    for draft in (None, "lookup"):
        longspan.extend(model, "dca", draft=draft)
        settings, streamer = {"repetition_penalty": 1.2} | options(), Streamed()
        if draft is not None:
            scripted(model, found[0][0])
        several = "num_return_sequences" in settings
        more = settings | ({} if several else {"streamer": streamer})
        tokens, cache = answer(model, ids, **more)
        own = [*settings.get("logits_processor", ()), *settings.get("stopping_criteria", ())]
        found.append((tokens, cache, streamer.given, streamer.ended, [one.seen for one in own]))
    assert torch.equal(found[1][0], found[0][0]) and found[1][2:] == found[0][2:]
    assert_same_cache(found[1][1], found[0][1])
    assert longspan.drafts_of(model).accepted or case == "one token"


@pytest.mark.usefixtures("all_of_them")
@pytest.mark.parametrize("after", [1, 5, 6])
def test_an_answer_that_is_broken_off_leaves_no_guesses(after):
    model, ids = make("llama"), prompts(1, 120)
    longspan.extend(model, "dca")
    plain, _ = answer(model, ids)
    longspan.extend(model, "dca", draft="lookup")
    scripted(model, plain)
    cache = longspan.new_cache(model)

    class Breaks(Streamed):
        def put(self, value):
            super().put(value)
            if len(self.given) > after:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(model, ids, past_key_values=cache, streamer=Breaks())
    assert cache.get_seq_length() == ids.shape[1] + after - 1
    longer = plain[:, : ids.shape[1] + after]
    assert torch.equal(answer(model, longer, past_key_values=cache, max_new_tokens=NEW - after)[0], plain)


@pytest.mark.usefixtures("all_of_them")
def test_a_second_turn_on_the_same_cache_and_a_copy_of_it():
    model, ids = make("llama"), prompts(1, 90)
    more, found = prompts(1, 7, seed=9), []
    for draft in (None, "lookup"):
        longspan.extend(model, "dca", draft=draft)
        tokens, cache = answer(model, ids)
        twin, longer = deepcopy(cache), torch.cat((tokens, more), dim=1)
        found.append([answer(model, longer, past_key_values=one)[0] for one in (cache, twin)])
    for one in found[1]:
        assert torch.equal(one, found[0][0])


REFUSED = {"beams": {"num_beams": 3}, "looked up twice": {"prompt_lookup_num_tokens": 3}}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drafted(case):
    model, ids = make("llama"), prompts(1, 60)
    longspan.extend(model, "dca")
    plain = model.generate(ids, max_new_tokens=8, do_sample=False, **REFUSED[case])
    longspan.extend(model, "dca", draft="auto")
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False, **REFUSED[case]), plain)
    assert longspan.drafts_of(model).drafted == 0
    longspan.extend(model, "dca", draft="lookup")
    with pytest.raises(longspan.LongspanError, match="cannot be drafted"):
        model.generate(ids, max_new_tokens=8, do_sample=False, **REFUSED[case])


def test_models_and_names_that_are_refused():
    model = make("llama")
    with pytest.raises(longspan.LongspanError, match="draft must be one of"):
        longspan.extend(model, "dca", draft="oracle")
    with pytest.raises(longspan.LongspanError, match="draft must be one of"):
        longspan.inspect(model, "dca", draft="oracle")
    with pytest.raises(longspan.LongspanError, match="not extended"):
        longspan.drafts_of(model)
    with pytest.raises(longspan.AttachError, match="attended by the model itself"):
        longspan.extend(make("gemma2"), "dca", draft="auto")


def test_the_model_is_what_it_was_after_restore():
    model = make("llama")
    before = set(vars(model))
    model.forward = forward = model.forward  # as accelerate sets it
    with longspan.extended(model, "dca", draft="auto"):
        assert model.forward is not forward
        with longspan.extended(model, "dca"):
            assert model.forward is forward
            assert longspan.drafts_of(model) is None
        assert model.forward is not forward
    assert model.forward is forward and set(vars(model)) - before <= {"forward"}


def test_calls_of_the_model_outside_of_generate_are_as_before():
    model, ids = make("llama"), prompts(1, 60)
    found = []
    for draft in (None, "lookup"):
        longspan.extend(model, "dca", draft=draft)
        cache = longspan.new_cache(model)
        with torch.no_grad():
            model(ids[:, :50], past_key_values=cache)
            found.append(torch.cat([model(ids[:, n : n + 1], past_key_values=cache).logits for n in range(50, 60)]))
    assert torch.equal(*found)


@pytest.mark.usefixtures("all_of_them")
def test_guidance_has_a_cache_of_its_own():
    """Its forwards are given the same tokens as the answer's, of which it knows nothing."""
    model, ids = make("llama"), prompts(1, 120)
    options = {"guidance_scale": 1.5, "negative_prompt_ids": prompts(1, 90)}
    longspan.extend(model, "dca")
    plain, _ = answer(model, ids, **options)
    longspan.extend(model, "dca", draft="lookup")
    scripted(model, plain)
    assert torch.equal(answer(model, ids, **options)[0], plain) and longspan.drafts_of(model).accepted


@pytest.mark.usefixtures("all_of_them")
@pytest.mark.parametrize("method", ["dca", "longheads", "esa"])
def test_a_forward_that_fails_leaves_no_guess(method):
    model, ids = make("llama"), prompts(1, 120)
    longspan.extend(model, method)
    plain, _ = answer(model, ids)
    longspan.extend(model, method, draft="lookup")
    scripted(model, plain)
    cache = longspan.new_cache(model)

    def fail(module, args):
        if 1 < args[0].shape[1] < 100:
            raise KeyboardInterrupt

    handle = model.lm_head.register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        answer(model, ids, past_key_values=cache)
    handle.remove()
    known = cache.get_seq_length()
    assert 120 < known < 120 + NEW
    more = torch.cat([plain[:, :known], prompts(1, 5)], dim=1)
    with torch.no_grad():
        continued = model(more[:, known:], past_key_values=cache).logits
        again = longspan.new_cache(model)
        model(more[:, :120], past_key_values=again)
        for n in range(120, known):
            model(more[:, n : n + 1], past_key_values=again)
        anew = model(more[:, known:], past_key_values=again).logits
    torch.testing.assert_close(continued, anew, rtol=1e-4, atol=1e-4)


# --- sampling ---

VOCABULARY = 7


class Whole:
    """Lengths that verify every proposal, from the first step on."""

    affords = True

    def length(self, kind, most):
        return most

    def looked(self, seconds):
        pass

    def took(self, drafted, seconds):
        pass

    def accepted(self, kind, drafted, accepted, *, ended):
        pass


@pytest.mark.long
def test_sampled_tokens_have_the_distribution_of_plain_sampling():
    """Chi-squared, of runs of tokens whose exact distribution the model's own forwards say."""
    config = make("llama").config
    config.vocab_size = VOCABULARY
    torch.manual_seed(4)
    model = LlamaForCausalLM(config).eval()
    longspan.extend(model, "dca", draft="lookup")
    ids = torch.tensor([[3, 1, 4, 1, 5, 2, 6, 5, 3, 1, 4, 1, 5]])
    drafting = attached_to(model).drafting

    class Certain:
        def begin(self, tokens):
            pass

        def propose(self, tokens, most):
            return Proposal((2, 6)[:most], "certain")

    drafting.drafter, drafting.take_back = Certain, lambda drafters: None
    drafting.lengths = Whole
    rows, temperature = 2000, 0.5
    torch.manual_seed(11)
    counts = torch.zeros(VOCABULARY, VOCABULARY, VOCABULARY)
    accepted = 0
    for _ in range(rows):
        out = model.generate(
            ids, max_new_tokens=3, do_sample=True, temperature=temperature, top_k=5, eos_token_id=None, pad_token_id=0
        )
        counts[tuple(out[0, -3:].tolist())] += 1
        accepted += longspan.drafts_of(model).accepted
    assert accepted > rows // 50
    longspan.extend(model, "dca")
    expected = torch.zeros_like(counts)
    with torch.no_grad():
        for a in range(VOCABULARY):
            for b in range(VOCABULARY):
                text = torch.cat((ids, torch.tensor([[a, b]])), dim=1)
                logits = model(text).logits[0, -3:] / temperature
                least = logits.topk(5, dim=-1).values[:, -1:]
                p = logits.masked_fill(logits < least, -torch.inf).softmax(dim=-1)
                expected[a, b] = rows * p[0, a] * p[1, b] * p[2]
    assert not counts[expected == 0].any()
    common = expected >= 5
    rest = torch.tensor([float(x[~common].sum()) for x in (counts, expected)])
    squared = float(((counts - expected)[common] ** 2 / expected[common]).sum()) + float(
        (rest[0] - rest[1]) ** 2 / rest[1]
    )
    freedom = int(common.sum())
    # The statistic's mean is its degrees of freedom, its variance twice those; five deviations never come by chance.
    assert squared < freedom + 5 * (2 * freedom) ** 0.5
