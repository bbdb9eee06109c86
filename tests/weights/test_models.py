"""Models with packed matrices: they compute as their numbers do, whatever is done with them."""

from __future__ import annotations

import copy

import pytest
import torch

import longspan
from longspan import LongspanError
from longspan.kernels import cpu
from longspan.loading.models import load_model
from longspan.weights.modules import PackedEmbedding, PackedLinear
from support.hf_models import build, make

FORMS = ("int8", "int4")
FAMILIES = ("llama", "qwen2", "gemma3_text", "phi3")


def dense(model):
    """The same model with the numbers of its packed matrices, in fp32."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, PackedLinear | PackedEmbedding):
            continue
        numbers = module.matrix.numbers()
        if isinstance(module, PackedEmbedding):
            plain = torch.nn.Embedding(*numbers.shape, module.padding_idx)
        else:
            plain = torch.nn.Linear(module.in_features, module.out_features, module.bias is not None)
            if module.bias is not None:
                plain.bias = module.bias
        plain.weight = torch.nn.Parameter(numbers)
        model.set_submodule(name, plain)
    return model.eval()


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folders = {}

    def of(family):
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            make(family).save_pretrained(folders[family])
        return str(folders[family])

    return of


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_computes_as_its_numbers_do(saved, family, form):
    model = load_model(saved(family), weights=form, dtype="float32", device="cpu")
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert len(packed) > 2 and {x.matrix.bits for x in packed} <= {4, 8}
    ids = torch.randint(2, 90, (2, 40))
    found, again = logits(model, ids), logits(dense(load_model(saved(family), weights=form, dtype="float32")), ids)
    torch.testing.assert_close(found, again, rtol=1e-4, atol=1e-4)
    one_by_one = [logits(model, ids[:, : n + 1])[:, -1] for n in range(3)]
    torch.testing.assert_close(torch.stack(one_by_one, dim=1), found[:, :3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", sorted(longspan.METHODS))
def test_every_method_runs_on_it(method):
    """Beyond the window it reads, and writes a token, as the model with the same numbers does."""
    models = [load_model("bundled", weights="int8", dtype="float32", device="cpu") for _ in range(2)]
    models[1] = dense(models[1])
    ids = torch.randint(2, 2000, (1, 600), generator=torch.Generator().manual_seed(0))
    found = []
    for model in models:
        longspan.extend(model, method, length=700)
        with torch.no_grad():
            read = model(ids[:, :-1], use_cache=True, logits_to_keep=1)
            found.append([read.logits, model(ids[:, -1:], past_key_values=read.past_key_values).logits])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", sorted(longspan.METHODS))
def test_mixed_is_float32_but_for_what_it_names(method):
    """Beyond the window its logits are those of float32 within the roundings of its products, read at once or later."""
    ids = torch.randint(2, 2000, (1, 600), generator=torch.Generator().manual_seed(0))
    found = {}
    for dtype in ("float32", "mixed"):
        model = load_model("bundled", weights="int8", dtype=dtype, device="cpu")
        assert model.dtype == torch.float32
        report = longspan.extend(model, method, length=700)
        assert not any("rounds activations" in note for note in report.warnings)  # which the trial does without
        with torch.no_grad():
            cache = longspan.new_cache(model)
            read = model(ids[:, :-1], past_key_values=cache, logits_to_keep=1).logits
            found[dtype] = torch.cat([read, model(ids[:, -1:], past_key_values=cache).logits], dim=1)
        kept = {layer.store.lying[0].dtype for layer in cache.layers}
        assert kept == {torch.float16 if dtype == "mixed" else torch.float32}
        found[dtype, "bytes"] = report.kv_bytes_per_token
    assert found["mixed", "bytes"] * 2 == found["float32", "bytes"]
    most = 0.03 * float(found["float32"].abs().max())
    torch.testing.assert_close(found["mixed"], found["float32"], rtol=0, atol=most)
    assert not torch.equal(found["mixed"], found["float32"])


@pytest.mark.parametrize("large", [2e4, 6e4, 1e5, float("nan")])
def test_keys_beyond_float16_are_told(saved, large):
    model = load_model(saved("qwen2"), weights="int8", dtype="mixed", device="cpu")
    longspan.extend(model, "dca")
    model.model.layers[1].self_attn.k_proj.bias.data += large  # 60,000 would be infinite after the rotation alone
    with pytest.raises(LongspanError, match=r"layers\.1.*16,376.*dtype='float32'"):
        logits(model, torch.randint(2, 90, (1, 9)))


@pytest.mark.parametrize(("weights", "device", "words"), [("fp32", "cpu", "leave one out"), ("auto", "cpu", "int8")])
def test_mixed_needs_packed_weights(saved, weights, device, words):
    with pytest.raises(LongspanError, match=words):
        load_model(saved("llama"), weights=weights, dtype="mixed", device=device)


@pytest.mark.parametrize(
    ("weights", "dtype", "words"),
    [("int5", "auto", "int5"), ("fp32", "bfloat16", "leave one out"), ("int-8", "auto", "did you mean 'int8'")],
)
def test_what_is_no_form_is_refused(weights, dtype, words):
    with pytest.raises(longspan.LongspanError, match=words):
        load_model("bundled", weights=weights, dtype=dtype)


@pytest.mark.parametrize(("weights", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_forms_that_are_dtypes(weights, dtype):
    assert load_model("bundled", weights=weights, device="cpu").dtype == dtype


def test_rows_that_no_group_fits_are_refused(tmp_path):
    sizes = {"vocab_size": 40, "hidden_size": 40, "intermediate_size": 40, "num_attention_heads": 4}
    build("llama", sizes).save_pretrained(tmp_path)
    with pytest.raises(longspan.LongspanError, match="rows of 32"):
        load_model(str(tmp_path), weights="int8")


def test_a_machine_without_the_kernel_is_told(saved):
    with cpu.disabled(), pytest.warns(UserWarning, match="each token unpacks"):
        model = load_model(saved("llama"), weights="int8", dtype="float32")
    ids = torch.randint(2, 90, (1, 5))
    with cpu.disabled():
        by_torch = logits(model, ids)
    torch.testing.assert_close(by_torch, logits(model, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_what_would_mostly_stay_as_it_is_is_refused(saved, family):
    with pytest.raises(longspan.LongspanError, match="experts"):
        load_model(saved(family), weights="int4")


def test_a_model_without_another_number_has_a_dtype(saved):
    """Its norms have no weights."""
    model = load_model(saved("nanochat"), weights="int8", dtype="float32")
    assert model.dtype == torch.float32
    longspan.extend(model, "dca")
    assert torch.isfinite(logits(model, torch.randint(2, 90, (1, 100)))).all()


def test_codes_are_not_saved_as_a_checkpoint(saved, tmp_path):
    model = load_model(saved("llama"), weights="int8")
    for one in (model, copy.deepcopy(model)):
        with pytest.raises(longspan.LongspanError, match="fp32"):
            one.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
