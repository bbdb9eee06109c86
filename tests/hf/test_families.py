"""Full through longspan equals stock, for every family, in forward, decoding and left-padded batch."""

import pytest
import torch
from transformers import DynamicCache

import longspan
from support.hf_models import (
    FAMILIES,
    NOTHING_TO_ATTACH,
    WINDOW,
    around_a_decoder,
    build,
    doge,
    falcon,
    falcon_h1,
    gemma3_with_images,
    gemma4,
    gpt2,
    left_padded,
    make,
    minimax,
    mllama,
    prompts,
)
from support.releases import TRANSFORMERS


def stepwise(model, ids, start):
    """Logits ``[B, T - start, V]`` of the tokens from ``start`` on, fed one by one after the others at once."""
    out = model(ids[:, :start], use_cache=True)
    steps = []
    for t in range(start, ids.shape[1]):
        out = model(ids[:, t : t + 1], past_key_values=out.past_key_values, use_cache=True)
        steps.append(out.logits)
    return torch.cat(steps, dim=1)


def close(ours, stock):
    """Within a few roundings of the largest logit."""
    if stock.numel() == 0:
        return True
    return float((ours - stock).abs().max()) <= 64 * torch.finfo(stock.dtype).eps * float(stock.abs().max())


@pytest.fixture(params=sorted(set(FAMILIES) - NOTHING_TO_ATTACH))
def family(request):
    return request.param


@torch.no_grad()
def test_full_equals_stock(family):
    model = make(family)
    ids = prompts()
    padded, mask, positions = left_padded(ids, [7, 0])
    before = {name: p.clone() for name, p in model.state_dict().items()}
    config = model.config.to_dict()

    def run():
        return (
            model(ids).logits,
            stepwise(model, ids, 33),
            model(padded, attention_mask=mask, position_ids=positions).logits * mask[..., None],
            model.generate(padded, attention_mask=mask, max_new_tokens=5, do_sample=False),
        )

    stock = run()
    report = longspan.extend(model, "full")
    assert report.attached and len(report.attached) + len(report.stock) == 2
    assert all(layer.reason for layer in report.stock)
    ours = run()
    for mine, theirs in zip(ours[:3], stock[:3], strict=True):
        assert close(mine, theirs)
    assert torch.equal(ours[3], stock[3])

    longspan.restore(model)
    for mine, theirs in zip(run(), stock, strict=True):
        assert torch.equal(mine, theirs)
    assert model.config.to_dict() == config
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


@torch.no_grad()
def test_layers_with_the_keys_of_others_see_all_tokens_where_few_logits_are_asked_for():
    model, ids = gemma4().double(), prompts()
    padded, mask, _ = left_padded(ids, [7, 0])
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}

    def run():
        return model(ids).logits, model(ids, logits_to_keep=3).logits, model.generate(padded, **options)

    stock = run()
    assert len(longspan.extend(model, "full").attached) == 3
    ours = run()
    assert close(ours[0], stock[0]) and close(ours[1], stock[1]) and torch.equal(ours[2], stock[2])
    longspan.extend(model, "dca")
    ids = prompts(1, 150)
    whole = model(ids).logits
    assert close(model(ids, logits_to_keep=1).logits, whole[:, -1:])
    assert close(stepwise(model, ids, 140), whole[:, 140:])


@torch.no_grad()
@pytest.mark.parametrize("pads", [[0, 0], [7, 0]], ids=["even", "padded"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"prefill_chunk_size": 7}, {"use_cache": False}], ids=str)
def test_a_model_around_the_decoder_that_makes_its_masks(options, pads):
    model = gemma3_with_images()
    padded, mask, _ = left_padded(prompts() % 90 + 3, pads)
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None, **options}
    stock = model(padded, attention_mask=mask).logits, model.generate(padded, **options)
    assert len(longspan.extend(model, "full").attached) == 1
    ours = model(padded, attention_mask=mask).logits, model.generate(padded, **options)
    assert close(ours[0] * mask[..., None], stock[0] * mask[..., None]) and torch.equal(ours[1], stock[1])
    images = padded.clone()
    images[:, 10:14] = 100
    sight = {"pixel_values": torch.randn(2, 3, 28, 28), "token_type_ids": (images == 100).long()}
    with pytest.raises(longspan.LongspanError, match="reads images or sound: an extended model reads only text"):
        model(images, attention_mask=mask, **sight)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "decoder"), [("idefics2", "mistral"), ("idefics3", "llama"), ("smolvlm", "llama")])
def test_a_model_around_the_decoder_that_makes_a_cache(kind, decoder):
    model, ids = around_a_decoder(kind, decoder), prompts() % 90 + 3
    stock = model(ids).logits
    longspan.extend(model, "full")
    begun = model(ids[:, :30])
    assert isinstance(begun.past_key_values, longspan.LongspanCache) and close(begun.logits, stock[:, :30])
    assert close(model(ids[:, 30:], past_key_values=begun.past_key_values).logits, stock[:, 30:])
    assert close(model(ids, use_cache=False).logits, stock)
    for call in (model, model.model.text_model):
        if TRANSFORMERS >= (5, 18):  # whose error it is
            with pytest.raises(ValueError, match="exactly one"):
                model(ids, inputs_embeds=model.get_input_embeddings()(ids))
        with pytest.raises(longspan.CacheError, match="DynamicCache"):
            call(ids, past_key_values=DynamicCache())


@torch.no_grad()
def test_layers_that_a_text_leaves_out():
    model, ids = mllama(), prompts(1)
    stock = model(ids).logits, stepwise(model, ids, 33)
    assert [layer.index for layer in longspan.extend(model, "full").attached] == [0, 2]
    assert close(model(ids).logits, stock[0]) and close(stepwise(model, ids, 33), stock[1])
    longspan.extend(model, "dca")
    ids, options = prompts(1, 150), {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    whole, plain = model(ids).logits, model.generate(ids, **options)
    cache = longspan.new_cache(model)
    model(ids, past_key_values=cache)
    cache.crop(-20)
    assert close(model(ids[:, 130:], past_key_values=cache).logits, whole[:, 130:])
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=3, **options), plain)
    image = {"cross_attention_states": torch.randn(1, 8, 64), "cross_attention_mask": torch.ones(1, 150, 1, 4)}
    with pytest.raises(longspan.LongspanError, match="reads images or sound: an extended model reads only text"):
        model(ids, **image)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "phi", "gemma2", "glm4", "gpt_oss", "hunyuan_v1_dense"])
def test_reduced_dtypes_stay_in_the_stock_models_error(name, dtype):
    reduced = make(name, dtype)
    exact = make(name).double() if name != "gpt_oss" else make(name)
    exact.load_state_dict({k: v.to(exact.dtype) for k, v in reduced.state_dict().items()})
    ids = prompts(1)
    truth = exact(ids).logits.double()
    stock = (reduced(ids).logits.double() - truth).norm()
    longspan.extend(reduced, "full")
    assert (reduced(ids).logits.double() - truth).norm() <= 1.5 * stock


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - NOTHING_TO_ATTACH - {"hunyuan_v1_dense"}))
@pytest.mark.parametrize("method", ["dca", "self-extend", "lm-infinite"])
def test_decoding_equals_prefill_beyond_the_window(name, method):
    model = make(name)
    ids = prompts(1, 150)
    longspan.extend(model, method)
    whole = model(ids).logits
    assert close(stepwise(model, ids, 140), whole[:, 140:])


@torch.no_grad()
@pytest.mark.parametrize("method", longspan.METHODS)
def test_every_method_is_stock_inside_its_exact_queries(method):
    model = make("llama")
    ids = prompts(1, 150)
    stock = model(ids).logits
    report = longspan.extend(model, method)
    rows = report.method.exact_queries(WINDOW, ids.shape[1])
    ours = model(ids).logits
    assert close(ours[:, :rows], stock[:, :rows])
    # Full attention is the stock model at any length; every other method has to differ beyond the window.
    assert close(ours, stock) == (method == "full")


@torch.no_grad()
@pytest.mark.parametrize("method", longspan.METHODS)
def test_left_padded_batch_equals_single_rows(method):
    model = make("llama")
    padded, mask, _ = left_padded(prompts(3, 150), [0, 61, 7])
    longspan.extend(model, method)
    together = model(padded, attention_mask=mask).logits
    for row, pad in enumerate([0, 61, 7]):
        assert close(together[row : row + 1, pad:], model(padded[row : row + 1, pad:]).logits)


@pytest.mark.parametrize(
    ("make_it", "reason"),
    [
        (falcon, "own code"),
        (gpt2, "no position_embeddings"),
        (lambda: make("mistral-sliding"), "no layer to attach to .*sliding-window.* with full attention"),
        (
            lambda: make("cohere2"),
            "no layer to attach to .*sliding-window.*no rotary positions.*it cannot be extended: no",
        ),
        (falcon_h1, r"no layer to attach to \(hybrid layer[^;]*\); it cannot be extended"),
        (doge, "does not run on 24 tokens with .*: its own code computes with the attention mask"),
        (minimax, "does not run on longspan's cache: MiniMax uses cache of its own"),
    ],
)
def test_models_that_cannot_be_extended_are_refused_unchanged(make_it, reason):
    model = make_it()
    ids = prompts(1)
    stock = model(ids).logits
    implementation = model.config._attn_implementation
    for call in (longspan.extend, longspan.inspect):
        with pytest.raises(longspan.AttachError, match=reason):
            call(model, "dca")
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert model.config._attn_implementation == implementation
    assert torch.equal(model(ids).logits, stock)


@pytest.mark.parametrize(
    ("kind", "own", "remedy"),
    [
        ("mistral", {"sliding_window": 16}, {"sliding_window": None}),
        ("ministral", {"sliding_window": 16}, {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_the_way_to_full_attention_in_all_layers_leads_there(kind, own, remedy):
    (name,) = remedy
    sizes = {**make("llama").config.to_dict(), **own, "model_type": kind}
    with pytest.raises(longspan.AttachError, match=rf"with full attention in all layers: {name}=\S.* in its config"):
        longspan.extend(build(kind, sizes), "full")
    assert len(longspan.extend(build(kind, {**sizes, **remedy}), "full").attached) == 2


def test_a_rotation_nobody_knows_is_refused_by_layer():
    model = make("llama")
    layer = model.model.layers[1].self_attn
    layer.register_forward_pre_hook(
        lambda m, args, kwargs: (
            args,
            {**kwargs, "position_embeddings": tuple(x * 0.5 for x in kwargs["position_embeddings"])},
        ),
        with_kwargs=True,
    )
    with pytest.raises(longspan.AttachError, match=r"layers\.1\.self_attn"):
        longspan.extend(model, "full")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_length_are_refused(kind):
    model = make("llama")
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": kind}
    with pytest.raises(longspan.AttachError, match=kind):
        longspan.extend(model, "full")


def test_a_config_without_a_window_asks_for_one():
    model = make("llama")
    vars(model.config)["max_position_embeddings"] = None  # as in configs that do not state it
    with pytest.raises(longspan.AttachError, match="window="):
        longspan.extend(model, "dca")
    assert longspan.extend(model, "dca", window=64).window == 64


def test_interface_helpers_do_not_depend_on_the_common_sizes():
    """Head size unlike hidden / heads, one key-value head, biases: sizes come from the tensors."""
    model = build(
        "qwen2",
        {
            "vocab_size": 128,
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
        },
    )
    ids = prompts()
    with torch.no_grad():
        stock = model(ids).logits
        report = longspan.extend(model, "full")
        assert close(model(ids).logits, stock)
    assert report.kv_bytes_per_token == 3 * 2 * 8 * 4


def test_gathered_keys_are_not_rotated_after_a_normalisation():
    model = make("hunyuan_v1_dense")
    with pytest.raises(longspan.AttachError, match=r"normalises keys after their rotation.*remap='far'"):
        longspan.extend(model, longspan.ESA(remap="slots"))
    longspan.extend(model, longspan.ESA())
