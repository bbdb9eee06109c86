"""Decoder layers whose tokens C takes in: what they give is what their modules give, whoever looks at those."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan.kernels import cpu
from longspan.kernels.linear.contract import FEW, PackedMatrix
from longspan.kernels.linear.decoder_layer import DecoderLayer, Linear, RMSNorm
from longspan.loading.models import load_model
from support.hf_models import make

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="no C kernels")


def replaced(model):
    return [module for module in model.modules() if "forward" in module.__dict__]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folders = {}

    def of(family):
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            make(family).save_pretrained(folders[family])
        return str(folders[family])

    return of


def extended(name, form="int8", dtype="float32", method="dca"):
    model = load_model(name, weights=form, dtype=dtype, device="cpu")
    longspan.extend(model, method, length=200)
    return model


def answers(model, ids, calls=(20, 1, 3, 1), stock=False):
    """Logits of a reading in several calls; ``stock`` ones by each layer's own forward."""
    forwards = [(layer, layer.__dict__.pop("forward")) for layer in replaced(model)] if stock else []
    found, cache, first = [], longspan.new_cache(model), 0
    with torch.no_grad():
        for count in calls:
            found.append(model(ids[:, first : first + count], past_key_values=cache).logits)
            first += count
    for layer, forward in forwards:
        layer.forward = forward
    return torch.cat(found, dim=1)


IDS = torch.randint(2, 90, (2, 40), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_tokens_are_those_of_the_modules(saved, family, form, dtype):
    model = extended(saved(family), form, dtype)
    assert len(replaced(model)) == model.config.num_hidden_layers
    ours, stock = answers(model, IDS), answers(model, IDS, stock=True)
    torch.testing.assert_close(ours, stock, rtol=0, atol=(1e-5 if dtype == "float32" else 2e-2) * stock.abs().max())
    assert not torch.equal(ours[:, 20:], stock[:, 20:])  # C did take them in


@pytest.mark.parametrize("method", sorted(longspan.METHODS))
def test_every_method_takes_tokens_so(saved, method):
    model = extended(saved("llama"), method=method)
    ours, stock = answers(model, IDS), answers(model, IDS, stock=True)
    torch.testing.assert_close(ours, stock, rtol=0, atol=1e-4 * float(stock.abs().max()))


@pytest.mark.parametrize("family", ["gemma3_text", "phi3", "qwen3", "gpt_neox"])
def test_other_layers_stay(saved, family):
    model = extended(saved(family))
    assert not replaced(model)
    answers(model, IDS)


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_other_dtypes_go_through_the_modules(saved, dtype):
    model = extended(saved("llama"), dtype=dtype)
    assert torch.equal(answers(model, IDS), answers(model, IDS, stock=True))


def test_restore_gives_the_layers_back(saved):
    model = extended(saved("llama"))
    longspan.extend(model, "longheads", length=200)
    assert replaced(model)
    longspan.restore(model)
    assert not replaced(model)


def tokens_after(model, change):
    """Logits of a token after ``change``, and those of the layers' own forwards; what was read is from before it."""
    found = []
    for stock in (False, True):
        cache = longspan.new_cache(model)
        with torch.no_grad():
            model(IDS[:, :20], past_key_values=cache)
            undo = change(model.model.layers[0])
            forwards = [(layer, layer.__dict__.pop("forward")) for layer in replaced(model)] if stock else []
            found.append(model(IDS[:, 20:21], past_key_values=cache).logits)
        for layer, forward in forwards:
            layer.forward = forward
        undo()
    return found


class Twice(torch.nn.Module):
    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, *args, **kwargs):
        found = self.of(*args, **kwargs)
        return (2 * found[0], *found[1:]) if isinstance(found, tuple) else 2 * found


def wrapped(path):
    def change(layer):
        own = layer.get_submodule(path)
        layer.set_submodule(path, Twice(own))
        return lambda: layer.set_submodule(path, own)

    return change


def with_a_bias(layer):
    q = layer.self_attn.q_proj
    q.bias = torch.nn.Parameter(torch.ones(q.out_features), requires_grad=False)

    def undo():
        q.bias = None

    return undo


def with_another_weight(layer):
    norm, own = layer.input_layernorm, layer.input_layernorm.weight
    norm.weight = torch.nn.Parameter(own * 2, requires_grad=False)

    def undo():
        norm.weight = own

    return undo


def with_a_hook(layer):
    return layer.mlp.up_proj.register_forward_hook(lambda module, args, out: 2 * out).remove


CHANGES = {
    **{path: wrapped(path) for path in ("self_attn.q_proj", "mlp.down_proj", "mlp", "mlp.act_fn", "input_layernorm")},
    "a bias": with_a_bias,
    "another weight": with_another_weight,
    "a hook": with_a_hook,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_after_extend_is_run(saved, change):
    """As adapters change modules, and people who look into a model."""
    model = extended(saved("llama"))
    plain = tokens_after(model, lambda layer: lambda: None)
    ours, stock = tokens_after(model, CHANGES[change])
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)
    assert (ours - plain[0]).abs().max() > 0.01
    torch.testing.assert_close(tokens_after(model, lambda layer: lambda: None)[0], plain[0], rtol=0, atol=0)


def test_a_hook_sees_every_token(saved):
    model, seen = extended(saved("llama")), []
    module = model.model.layers[0].mlp.down_proj
    handle = module.register_forward_hook(lambda module, args, out: seen.append(out.shape[1]))
    answers(model, IDS)
    handle.remove()
    answers(model, IDS)
    assert seen == [20, 1, 3, 1]


def test_a_forward_that_somebody_wrapped_stays(saved):
    model = extended(saved("llama"))
    layer, seen = model.model.layers[0], []
    ours = layer.forward
    layer.forward = lambda *args, **kwargs: seen.append(1) or ours(*args, **kwargs)
    answers(model, IDS, calls=(20, 1))
    longspan.restore(model)
    assert "forward" in layer.__dict__ and not replaced(model)[1:]
    with torch.no_grad():
        restored = model(IDS).logits
    del layer.forward
    with torch.no_grad():
        assert len(seen) == 3 and torch.equal(restored, model(IDS).logits)
    longspan.extend(model, "dca", length=200)


def test_a_layer_that_clips_stays(saved, monkeypatch):
    from transformers.models.llama import modeling_llama

    def clipping(q, k, cos, sin, *args, **kwargs):
        q, k = rotated(q, k, cos, sin, *args, **kwargs)
        return q.clamp(-limit, limit), k

    rotated = modeling_llama.apply_rotary_pos_emb
    model = load_model(saved("llama"), weights="int8", dtype="float32", device="cpu")
    q = model.model.layers[0].self_attn.q_proj.matrix.numbers() * model.model.layers[0].input_layernorm.weight
    limit = float(q.square().sum(dim=1).max()) / float(q.square().sum(dim=1).max().sqrt()) * q.shape[1] ** 0.5 * 0.8
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", clipping)
    longspan.extend(model, "dca", length=200)
    assert model.model.layers[0] not in replaced(model)


def test_a_number_beyond_float16_is_told_under_autocast_too(saved):
    model = extended(saved("llama"), dtype="mixed")
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight.mul_(1e6)
        with pytest.raises(longspan.LongspanError, match="float16"), torch.autocast("cpu", torch.float16):
            model(IDS[:, :3])
        with pytest.raises(longspan.LongspanError, match="float16"):
            model(IDS[:, :3])


def test_weights_that_move_or_change_are_followed(saved):
    model = extended(saved("llama"))
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight.mul_(2)
        torch.testing.assert_close(answers(model, IDS), answers(model, IDS, stock=True), rtol=1e-4, atol=1e-4)
        model.model.layers[1].input_layernorm.weight.data = model.model.layers[1].input_layernorm.weight.data * 3
    torch.testing.assert_close(answers(model, IDS), answers(model, IDS, stock=True), rtol=1e-4, atol=1e-4)


def test_gradients_go_through_the_modules(saved):
    model = extended(saved("llama"))
    cache = longspan.new_cache(model)
    model(IDS[:, :20], past_key_values=cache)
    layer, seen = model.model.layers[0], []
    stock = type(layer.mlp).forward
    layer.mlp.forward = lambda x: seen.append(x.shape) or stock(layer.mlp, x)
    with torch.enable_grad():
        model(IDS[:, 20:21], past_key_values=cache)
    assert len(seen) == 1


def matrix(outs, width, bits=4):
    codes = torch.randint(0, 256, (outs, width * bits // 8), dtype=torch.uint8)
    scales, minima = (torch.randn(outs, width // 32).mul(0.05).half() for _ in range(2))
    return PackedMatrix(codes if bits == 4 else codes.view(torch.int8), scales, minima if bits == 4 else None)


def a_layer(most=1e30):
    torch.manual_seed(0)
    linears = [
        Linear(matrix(outs, width, bits), torch.randn(outs) if bias else None)
        for outs, width, bits, bias in (
            (96, 64, 4, True), (32, 64, 4, True), (48, 64, 8, True), (64, 96, 8, False),
            (160, 64, 4, False), (160, 64, 4, True), (64, 160, 8, True),
        )
    ]  # fmt: skip
    norms = [RMSNorm(torch.randn(64), 1e-5) for _ in range(2)]
    return linears, norms, DecoderLayer(norms[0], linears[:3], linears[3], norms[1], linears[4:6], linears[6], most)


def dense(x, one):
    y = x @ one.matrix.numbers(torch.float64).T
    return y if one.bias is None else y + one.bias.double()


def normed(x, norm):
    return norm.weight.double() * x / (x.square().mean(-1, keepdim=True) + norm.epsilon).sqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5, FEW])
def test_the_calls_are_their_formula(rows, dtype):
    linears, norms, layer = a_layer()
    hidden, attended = torch.randn(rows, 64) * 3, torch.randn(rows, 96).to(dtype)
    q, k, v, out, gate, up, last = linears
    truth = [dense(normed(hidden.double(), norms[0]), one) for one in (q, k, v)]
    budget = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for one, right in zip(layer.before(hidden, dtype), truth, strict=True):
        assert one.dtype == dtype and (one.double() - right).abs().max() <= budget * right.abs().max()
    middle = hidden.double() + dense(attended.double(), out)
    of_gate, of_up = (dense(normed(middle, norms[1]), one) for one in (gate, up))
    right = middle + dense(torch.nn.functional.silu(of_gate) * of_up, last)
    assert (layer.after(hidden, attended).double() - right).abs().max() <= 2e-6 * right.abs().max()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_the_same_beside_others(threads):
    _, _, layer = a_layer()
    hidden, attended = torch.randn(FEW, 64), torch.randn(FEW, 96)
    with cpu.settings(numbers_per_thread=1 if threads > 1 else 2**40):
        together = [*layer.before(hidden, torch.float32), layer.after(hidden, attended)]
        for row in (0, 3, FEW - 1):
            some = slice(row, row + 1)
            alone = [*layer.before(hidden[some], torch.float32), layer.after(hidden[some], attended[some])]
            assert all(torch.equal(x[some], y) for x, y in zip(together, alone, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_is_beyond_is_told(value):
    _, _, layer = a_layer(most=1e4)
    hidden = torch.randn(3, 64)
    assert layer.before(hidden, torch.float16) is not None
    hidden[1, 5] = value
    # A norm makes a large number the only one, and not a larger one.
    assert (layer.before(hidden, torch.float16) is None) == (value != 1e30)
    assert a_layer(most=1e-3)[2].before(torch.randn(1, 64), torch.float16) is None


def test_what_torch_func_transforms_is_refused(saved):
    model = extended(saved("llama"))
    with torch.no_grad(), pytest.raises(longspan.LongspanError, match=r"torch\.func"):
        torch.func.vmap(lambda scale: model(inputs_embeds=torch.ones(1, 2, model.config.hidden_size) * scale).logits)(
            torch.ones(3)
        )
