"""The API around a model: report, restoring, caches, and errors that say what to do."""

import copy
import gc
import json
import weakref

import pytest
import torch
from transformers import DynamicCache

import longspan
from longspan.methods import METHODS
from support.hf_models import WINDOW, left_padded, make, prompts


def test_report_names_everything():
    model = make("gemma2")
    report = longspan.extend(model, "dca", angles=longspan.YaRN(factor=4))
    text = str(report)
    for part in (
        "Gemma2ForCausalLM",
        "dca",
        "chunk_size",
        "48",
        "YaRN(factor=4",
        "64 tokens",
        "sliding-window",
        "16 of 16",
    ):
        assert part in text
    assert [layer.index for layer in report.attached] == [1]
    assert json.loads(json.dumps(report.to_dict()))["parameters"]["chunk_size"] == 48


def test_a_report_is_short_at_a_prompt_and_whole_in_a_notebook():
    report = longspan.extend(make("gemma2"), "dca", angles=longspan.YaRN(factor=4), kv_tier="disk")
    said = repr(report)
    assert len(said.splitlines()) <= 3 and "dca:" in said and "1 of 2 layers of Gemma2ForCausalLM" in said
    page = report._repr_html_()
    assert page.startswith("<pre>") and all(word in page for word in ("sliding-window", "Gemma2ForCausalLM"))
    assert len(str(report).splitlines()) > 3


def test_original_window_is_shown():
    assert "original_max_position_embeddings 32" in str(longspan.inspect(make("gpt_oss")))


def test_memory_estimate_is_what_the_cache_holds():
    for method in ("full", "dca", "self-extend", "dynamic-ntk"):
        model = make("llama")
        report = longspan.extend(model, method)
        cache = longspan.new_cache(model)
        model(prompts(3, 50), past_key_values=cache)
        held = sum(x[..., :50, :].numel() * 4 for la in cache.layers for x in [*la.store.keys, la.store.values])
        assert held == report.kv_bytes_per_token * 3 * 50
        assert cache.nbytes >= held


def test_inspect_changes_nothing():
    model = make("llama")
    before = model.config._attn_implementation, dict(vars(model))
    assert longspan.inspect(model, "yarn").method.angles == longspan.YaRN(factor=4).resolve(WINDOW)
    assert (model.config._attn_implementation, dict(vars(model))) == before
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


@torch.no_grad()
def test_extended_restores_what_was_there():
    model = make("llama")
    ids = prompts(1, 150)
    stock = model(ids).logits
    longspan.extend(model, "dca")
    dca = model(ids).logits
    with longspan.extended(model, "rerope"):
        assert not torch.equal(model(ids).logits, dca)
        assert not torch.equal(model(ids).logits, stock)
    assert torch.equal(model(ids).logits, dca)
    with pytest.raises(ZeroDivisionError), longspan.extended(model, "yarn"):
        1 / 0  # noqa: B018
    assert torch.equal(model(ids).logits, dca)
    longspan.restore(model)
    longspan.restore(model)
    assert torch.equal(model(ids).logits, stock)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


@torch.no_grad()
def test_a_failed_extend_keeps_the_previous_method():
    model = make("llama")
    ids = prompts(1, 150)
    longspan.extend(model, "dca")
    before = model(ids).logits
    with pytest.raises(ValueError, match="chunk_size"):
        longspan.extend(model, longspan.DCA(chunk_size=1000))
    assert torch.equal(model(ids).logits, before)


@torch.no_grad()
def test_two_models_at_once():
    one, two = make("llama"), make("llama")
    ids = prompts(1, 150)
    longspan.extend(one, "dca")
    longspan.extend(two, "rerope")
    a, b = one(ids).logits, two(ids).logits
    assert not torch.equal(a, b)
    longspan.restore(one)
    assert torch.equal(two(ids).logits, b)


def test_an_extended_model_can_be_freed():
    model = make("llama")
    longspan.extend(model, "dca")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_window_and_angles_are_taken():
    model = make("llama")
    report = longspan.extend(model, "dca", window=32)
    assert (report.window, report.method.window, report.method.chunk_size) == (32, 32, 24)
    report = longspan.extend(model, longspan.PI(scale=2))
    assert (report.method.name, report.method.angles) == ("full", longspan.PI(scale=2))


def forward(**options):
    return lambda model: model(prompts(), **options)


@torch.no_grad()
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: longspan.extend(m, "nope"), "unknown method 'nope'; choose one of full"),
        (lambda m: longspan.extend(m, 3), "not int"),
        (lambda m: longspan.extend(m, "dca", angles=4), "YaRN"),
        (lambda m: longspan.extend(m.model.layers[0], "dca"), "not LlamaDecoderLayer"),
        (lambda m: longspan.extend(m, "dca", window=0), "window must be a number of tokens from 1"),
        (lambda m: longspan.inspect(m), "already extended"),
        (lambda m: longspan.new_cache(make("llama")), "extend"),
        (lambda m: forward(past_key_values=DynamicCache(config=m.config))(m), "new_cache"),
        (lambda m: m.generate(prompts(), past_key_values=DynamicCache(), max_new_tokens=2), "new_cache"),
        (lambda m: m.generate(prompts(), cache_implementation="static", max_new_tokens=2), "static"),
        (forward(output_attentions=True), "output_attentions"),
        (forward(attention_mask=torch.tensor([[1, 0] * 20] * 2)), "padding inside a row or at its end"),
        (forward(attention_mask=torch.ones(2, 30, dtype=torch.long)), "covers 30 tokens"),
        (forward(attention_mask=torch.ones(3, 40, dtype=torch.long)), "has 3 rows and the input has 2"),
        (forward(attention_mask=torch.zeros(2, 1, 40, 40)), r"\[batch, tokens\]"),
        (forward(position_ids=torch.arange(20).repeat(2)[None]), "packed"),
        (lambda m: m.train()(prompts()), "eval"),
    ],
)
def test_clear_errors(call, says):
    model = make("llama")
    longspan.extend(model, "dca")
    with pytest.raises(longspan.LongspanError if "window ≥" not in says else ValueError, match=says):
        call(model)


def test_training_through_it_is_refused():
    model = make("llama")
    longspan.extend(model, "dca")
    loss = model(prompts(), labels=prompts()).loss
    with pytest.raises(longspan.LongspanError, match="backward"):
        loss.backward()


@pytest.mark.parametrize(
    ("family", "trained"),
    [
        *(("llama", name) for name in ("q_proj", "k_proj", "v_proj")),
        *(("hunyuan_v1_dense", name) for name in ("query_layernorm", "key_layernorm")),
        ("gpt_oss", "sinks"),
    ],
)
def test_no_gradient_is_lost_where_few_weights_have_one(family, trained):
    model = make(family)
    longspan.extend(model, "dca")
    for name, weight in model.named_parameters():
        weight.requires_grad_(f"layers.1.self_attn.{trained}" in name or "lm_head" in name)
    with pytest.raises(longspan.LongspanError, match="backward"):
        model(prompts(), labels=prompts()).loss.backward()


@torch.no_grad()
@pytest.mark.parametrize("method", [*METHODS, "dca:length_scale=0.1"])
def test_a_row_padded_on_the_right_is_the_row_alone_or_refused(method):
    model, ids = make("llama"), prompts(2, 200)
    resolved = longspan.extend(model, method).method
    mask = torch.ones_like(ids)
    mask[0, 150:] = 0
    if resolved.call_dependent or resolved.length_dependent:
        with pytest.raises(longspan.LongspanError, match=rf"what {resolved.name} computes: .*padding_side"):
            model(ids, attention_mask=mask)
        return
    both, alone = model(ids, attention_mask=mask).logits, model(ids[:1, :150]).logits
    torch.testing.assert_close(both[:1, :150], alone, rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_cache_of_another_method_or_batch_is_refused():
    model = make("llama")
    longspan.extend(model, "dca")
    cache = longspan.new_cache(model)
    padded, mask, _ = left_padded(prompts(), [7, 0])
    model(padded, attention_mask=mask, past_key_values=cache)
    with pytest.raises(longspan.CacheError, match="left padding"):
        model(prompts(2, 1), past_key_values=cache)
    with pytest.raises(longspan.CacheError, match="2 rows and the input has 3"):
        model(prompts(3, 1), past_key_values=cache)
    longspan.extend(model, "rerope")
    with pytest.raises(longspan.CacheError, match="DCA.*ReRoPE"):
        model(prompts(2, 1), past_key_values=cache)


@torch.no_grad()
def test_cache_operations():
    model = make("llama")
    longspan.extend(model, "dca")
    ids = prompts(2, 150)
    cache = longspan.new_cache(model)
    first = model(ids, past_key_values=cache).logits
    cache.crop(-30)
    assert cache.get_seq_length() == 120
    assert torch.allclose(model(ids[:, 120:], past_key_values=cache).logits, first[:, 120:], atol=1e-5)
    cache.crop(100)
    assert cache.get_seq_length() == 100
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([3, 0, 1, 2]))
    cache.batch_select_indices(torch.tensor([0, 1]))
    again = model(ids[[1, 0], 100:], past_key_values=cache).logits
    assert torch.allclose(again, first[[1, 0], 100:], atol=1e-5)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.allclose(model(ids, past_key_values=cache).logits, first, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("piece", [1, 4, 10, 13])
def test_pieces_shorter_than_the_padding(piece):
    """A row may be nothing but padding for several pieces."""
    model = make("llama")
    padded, mask, _ = left_padded(prompts(), [10, 0])
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "prefill_chunk_size": piece}
    stock = model.generate(padded, **options)
    longspan.extend(model, "full")
    assert torch.equal(model.generate(padded, **options), stock)


@torch.no_grad()
@pytest.mark.parametrize("method", ["dca", "longheads"])
@pytest.mark.parametrize(("left", "pad"), [(4, 10), (4, 4), (12, 10)])
def test_a_crop_into_the_padding_goes_on(method, left, pad):
    model = make("llama")
    longspan.extend(model, method)
    (padded, mask, _), cache = left_padded(prompts(), [10, 0]), longspan.new_cache(model)
    model(padded[:, :20], attention_mask=mask[:, :20], past_key_values=cache)
    cache.crop(left)
    padded, mask, _ = left_padded(prompts(), [pad, 0])
    for start, stop in ((left, left + 1), (left + 1, 40)):
        logits = model(padded[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache).logits
    for row, n in enumerate((pad, 0)):
        alone = model(padded[row : row + 1, n:]).logits[:, -10:]
        torch.testing.assert_close(logits[row : row + 1, -10:], alone, rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_cache_of_another_model_is_refused():
    one, two = make("llama"), make("llama")
    longspan.extend(one, "dca")
    longspan.extend(two, "dca")
    cache = longspan.new_cache(one)
    one(prompts(), past_key_values=cache)
    with pytest.raises(longspan.CacheError, match="another model"):
        two(prompts(2, 1), past_key_values=cache)


def test_modes_of_modules_survive():
    model = make("llama")
    model.train()
    model.model.layers[0].eval()
    longspan.extend(model, "dca")
    longspan.restore(model)
    assert model.training and model.model.layers[1].training and not model.model.layers[0].training


def test_angles_are_never_replaced_in_silence():
    model = make("llama")
    assert longspan.extend(model, "pi", angles=longspan.PI(scale=2)).method.angles.scale == 2
    for method in ("pi", longspan.YaRN(factor=4)):
        with pytest.raises(longspan.LongspanError, match="would replace"):
            longspan.extend(model, method, angles=longspan.NTK(scale=2))


def test_copies_of_an_extended_model_are_refused():
    model = make("llama")
    longspan.extend(model, "dca")
    with pytest.raises(longspan.LongspanError, match="cannot be pickled or copied"):
        copy.deepcopy(model)
    for other in (copy.copy(model), model.model):
        for call in (longspan.restore, longspan.extend, longspan.inspect):
            with pytest.raises(longspan.LongspanError, match="copy or a submodule"):
                call(other)


def test_an_unknown_kernel_is_refused_before_anything_is_attached():
    model = make("llama")
    with pytest.raises(ValueError, match="impl must be one of"):
        longspan.extend(model, "dca", impl="bogus")
    assert model.config._attn_implementation != "longspan"


def test_a_kernel_that_does_not_take_the_models_scores_is_refused():
    model = make("gemma2")
    with pytest.raises(longspan.AttachError, match=r"with impl='flash_cpu': .* has no softcap; use impl='torch'"):
        longspan.extend(model, "dca", impl="flash_cpu")
    assert model.config._attn_implementation != "longspan"


def test_sliding_windows_beyond_the_window_are_said():
    report = longspan.inspect(make("gemma2"), "dca", window=8)
    assert any("wider than the window of 8" in warning for warning in report.warnings)


def test_a_model_that_cannot_be_eager_is_refused_for_what_differs(monkeypatch):
    model = make("llama")
    own, before = model.set_attn_implementation, model.config._attn_implementation

    def without_eager(name):
        if name == "eager":
            raise ValueError("there is no eager attention")
        own(name)

    # Whatever the model gives is another thing, and there is no eager attention to ask.
    monkeypatch.setattr(model, "set_attn_implementation", without_eager)
    monkeypatch.setattr("longspan.hf.probe.stock_check.tolerance", lambda dtype: -1.0)
    with pytest.raises(longspan.AttachError, match="differs from the stock model"):
        longspan.extend(model)
    assert model.config._attn_implementation == before


def test_attention_that_differs_only_without_a_mask_is_told():
    """Without one, sdpa sees later tokens where the module is not causal; eager and longspan do not."""
    model = make("llama")
    model.model.layers[0].self_attn.is_causal = False
    assert any("longspan computes what eager does" in warning for warning in longspan.extend(model, "full").warnings)
    assert not any("eager" in warning for warning in longspan.extend(make("llama"), "full").warnings)
