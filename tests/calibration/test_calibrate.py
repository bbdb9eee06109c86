"""Calibrating models: what is gathered is what attention gets, and every model is left as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from tokenizers import processors
from torch.ao.quantization import quantize_dynamic

import longspan
from longspan.bundled import FOLDER, heldout_text, load_bundled
from longspan.calibration import Calibration, recall
from longspan.documents import fingerprint
from longspan.errors import AttachError, CalibrationError
from longspan.hf import calibrate_each, measure_recall
from longspan.hf.attach import attachment_of
from longspan.hf.calibration import calibrate as calibrating
from longspan.hf.calibration.calibrate import check_calibration
from longspan.hf.calibration.collect import collect, token_chunks, token_ids
from longspan.model.weights import weights_hash
from support.hf_models import VOCABULARY, WINDOW, falcon, make, prompts
from support.scaled_weight import Scaled

TEXTS = list(prompts(6, WINDOW, seed=3))


def calibrated(model, texts=TEXTS, **settings):
    return longspan.calibrate(model, texts, **{"tokens": 6 * WINDOW, "progress": False, **settings})


@pytest.fixture(scope="module")
def bundled():
    return load_bundled()


@pytest.mark.parametrize("name", ["llama", "llama-mha", "phi", "gemma3_text", "gpt_neox", "hunyuan_v1_dense"])
def test_what_is_gathered_gives_the_models_own_scores(name):
    """A token's score for itself is the same unrotated; under norms that follow the rotation, at position 0 alone."""
    model, chunk = make(name), prompts(1, 12)[0]
    seen, stock = {}, {}

    def sink(layer, q, k):
        seen[layer.index] = (q * k.repeat_interleave(q.shape[1] // k.shape[1], 1)).sum(-1)

    collect(model, [chunk], sink, window=WINDOW)

    def record(module, q, k, v, mask, kwargs):
        from longspan.hf import interface

        stock[module.layer_idx] = (q * k.repeat_interleave(q.shape[1] // k.shape[1], 1)).sum(-1)
        return interface.stock_attention("eager", module, q, k, v, mask, kwargs)

    from longspan.hf import interface

    interface.register()
    model.set_attn_implementation(interface.NAME)
    with torch.no_grad(), interface.recording(record):
        model(chunk[None])
    assert seen
    tokens = 1 if name.startswith("hunyuan") else 12
    for index, scores in seen.items():
        torch.testing.assert_close(scores[..., :tokens], stock[index][..., :tokens], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("solver", ["closed_form", "sgd", "pca"])
def test_full_size_loses_nothing_but_for_sgd(solver):
    model = make("llama")
    made = calibrated(model, solver=solver, reduced=32, reduced_per_head=16)
    assert set(made.layers) == {0, 1} and made.layers[0].theta_q.shape == (32, 32)
    assert made.heads[1].theta_k.shape == (2, 16, 16)
    assert (made.window, made.tokens, made.solver) == (WINDOW, 6 * WINDOW, solver)
    rates = []

    def sink(layer, q, k):
        rates.extend(recall(q, k, maps[layer.index], 8) for maps in (made.layers, made.heads))

    collect(model, [TEXTS[0]], sink)
    assert min(rates) > (0.99 if solver != "sgd" else 0.1)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "hunyuan_v1_dense"])
def test_full_size_chooses_as_exact_scores_do(name):
    """Also those of queries and keys that a norm follows on their rotation, as Hunyuan's."""
    model, ids = make(name), prompts(1, 4 * WINDOW)
    made = calibrated(model, reduced=32)
    with longspan.extended(model, longspan.ESA()):
        exact = model(ids).logits
    with longspan.extended(model, longspan.ESA(reduced=32), calibration=made):
        torch.testing.assert_close(model(ids).logits, exact, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("before", [None, "dca"])
def test_the_model_is_left_as_it_was(before):
    model = make("llama")
    ids = prompts(1, 150)
    if before:
        longspan.extend(model, before)
    expected, attached = model(ids).logits, attachment_of(model)
    made = calibrated(model)
    assert torch.equal(model(ids).logits, expected) and attachment_of(model) is attached
    assert attached is None or attached.observer is None
    with pytest.raises(CalibrationError, match="vocabulary of 128"):
        calibrated(model, [torch.full((WINDOW,), VOCABULARY)] * 6)
    assert torch.equal(model(ids).logits, expected) and attachment_of(model) is attached
    assert torch.equal(made.layers[0].theta_q, calibrated(make("llama")).layers[0].theta_q)


def test_defaults_are_an_eighth():
    made = calibrated(make("llama"))
    assert (made.reduced, made.reduced_per_head) == (4, 2)
    assert made.model_id == "LlamaForCausalLM" and made.dtype == "float32"
    assert made.weights_sha256 == weights_hash(make("llama"))


def test_layers_left_stock_have_no_projection():
    assert set(calibrated(make("gemma2")).layers) == {1}
    with pytest.raises(AttachError, match="no layer to attach to"):
        calibrated(make("mistral-sliding"))


def test_layers_that_do_not_fit_the_memory_are_done_in_turns(monkeypatch):
    at_once = calibrate_each(make("llama"), TEXTS, tokens=6 * WINDOW, progress=False)
    passes = []
    # A small budget: these layers exceed it. The passes over the text are counted.
    monkeypatch.setattr(calibrating, "BUDGET", 1)
    monkeypatch.setattr(calibrating, "collect", lambda *args, **given: passes.append(1) or collect(*args, **given))
    in_turns = calibrate_each(make("llama"), TEXTS, tokens=6 * WINDOW, progress=False)
    assert list(at_once) == ["closed_form", "sgd", "pca"] and len(passes) == 2
    for solver, made in at_once.items():
        assert made.solver == solver
        for index in (0, 1):
            assert torch.equal(made.layers[index].theta_k, in_turns[solver].layers[index].theta_k)
            assert torch.equal(made.heads[index].theta_q, in_turns[solver].heads[index].theta_q)


def test_pieces_of_unequal_length_go_through_one_by_one():
    lengths, chunks = [], [TEXTS[0], TEXTS[1], TEXTS[2][:30], TEXTS[3][:30], TEXTS[4]]
    batched, single = ([], [])
    collect(make("llama"), chunks, lambda layer, q, k: batched.append(k) if layer.index else None, done=lengths.append)
    for chunk in chunks:
        collect(make("llama"), [chunk], lambda layer, q, k: single.append(k) if layer.index else None)
    assert lengths == [2 * WINDOW, 60, WINDOW]
    rows = [row for keys in batched for row in keys]
    assert len(rows) == len(single)
    for row, alone in zip(rows, single, strict=True):
        torch.testing.assert_close(row, alone[0])


def test_recall_is_of_the_last_queries_among_the_middle_keys():
    model, ids, seen = make("llama"), prompts(1, 150)[0], {}
    made = calibrated(model)
    report = measure_recall(model, [made], [ids], queries=20, top=5, progress=False)
    collect(model, [ids], lambda layer, q, k: seen.update({layer.index: (q, k)}), method="dca")
    assert (report.keys, report.queries) == (150 - 1 - 20 - 32, 20)
    for row in report.rows:
        q, k = seen[row.index]
        q, k = q[:, :, 130:], k[:, :, 1:98]
        expected = [recall(q, k, maps[row.index], 5) for maps in (made.layers, made.heads)]
        assert [row.layer, row.heads] == pytest.approx(expected)
        assert 0 < row.layer < 1


def test_recall_is_among_as_many_keys_as_are_not_kept_anyway():
    model, ids = make("llama"), prompts(1, 150)[0]
    made = calibrated(model)
    for initial, local in ((5, 10), (0, 0)):
        settings = {"initial": initial, "local": local, "progress": False}
        report = measure_recall(model, [made], [ids], queries=20, top=5, **settings)
        assert report.keys == 150 - 20 - initial - local
    with pytest.raises(CalibrationError, match="at least 150 tokens"):
        measure_recall(model, [made], [ids[:149]], queries=20, top=95, initial=5, local=30, progress=False)


def test_texts_are_read_no_further_than_needed():
    def endless():
        while True:
            read.append(1)
            yield TEXTS[0]

    read = []
    assert calibrated(make("llama"), endless(), tokens=3 * WINDOW).tokens == 3 * WINDOW and len(read) == 3


def test_pieces_begin_as_the_tokenizer_begins_texts(bundled):
    _, tokenizer = bundled
    text = heldout_text()[:4000]
    ids = tokenizer(text)["input_ids"]
    chunks = token_chunks([text], tokenizer, 100, 350)
    assert [chunk.numel() for chunk in chunks] == [100, 100, 100, 50]
    assert all(int(chunk[0]) == tokenizer.bos_token_id for chunk in chunks)
    assert [ids[0], *torch.cat([chunk[1:] for chunk in chunks]).tolist()] == ids[:347]
    own = copy.deepcopy(tokenizer)
    first = [("<pad>", tokenizer.pad_token_id), ("<s>", tokenizer.bos_token_id)]
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<pad> <s> $A", special_tokens=first)
    own.bos_token = None
    pairs = token_chunks([text], own, 100, 350)
    assert all(chunk[:2].tolist() == list(dict(first).values()) for chunk in pairs)
    assert torch.cat([chunk[2:] for chunk in pairs]).tolist() == ids[1:343]
    short = token_chunks([text[:30], text[:30], ids_of(tokenizer, text)[:30]], tokenizer, 100, 1000)
    assert short[0].equal(short[1]) and short[2].numel() == 30 and int(short[2][0]) != tokenizer.bos_token_id


def ids_of(tokenizer, text):
    return token_ids(tokenizer, text)


@pytest.mark.parametrize(
    ("texts", "settings", "words"),
    [
        ("one text", {}, "not one str"),
        (TEXTS[0], {}, "not one Tensor"),
        (["a text"], {}, "text 0 is a string: pass tokenizer="),
        ([b"bytes"], {}, "text 0 is a bytes"),
        ([TEXTS[0], TEXTS[1].float()], {}, "text 1 is a tensor torch.float32"),
        ([prompts(2)], {}, r"text 0 is a tensor torch.int64 \[2, 40\]"),
        ([TEXTS[0][:20]], {}, "20 tokens .*384 requested.*32 channels"),
        ([], {}, "0 tokens"),
        ([torch.full((WINDOW,), 7)] * 3, {}, "all keys of layer 0 are equal in these texts: they repeat one token"),
        ([TEXTS[0]], {"solver": "sgd"}, "the solver 'sgd' needs 128 tokens, and the texts have 64"),
        (TEXTS, {"solver": "magic"}, "closed_form, sgd, pca, not 'magic'"),
        (TEXTS, {"reduced": 33}, "reduced must be 1 to 32"),
        (TEXTS, {"reduced": 0}, "reduced must be a number of channels from 1"),
        (TEXTS, {"reduced_per_head": 17}, "reduced_per_head must be 1 to 16"),
        (TEXTS, {"tokens": 0}, "tokens must be a number of tokens from 1"),
    ],
)
def test_what_cannot_be_calibrated_on(texts, settings, words):
    with pytest.raises(longspan.LongspanError, match=words):
        calibrated(make("llama"), texts, **settings)


def test_models_that_cannot_be_calibrated():
    with pytest.raises(longspan.AttachError):
        calibrated(falcon())
    with pytest.raises(longspan.LongspanError, match="training mode"):
        calibrated(make("llama").train())


def test_a_text_that_ends_early_is_said():
    with pytest.warns(UserWarning, match="end after 128 of 384 tokens"):
        assert calibrated(make("llama"), TEXTS[:2]).tokens == 128


def test_extend_takes_a_calibration_that_fits(tmp_path):
    model = make("llama")
    made = calibrated(model)
    made.save(tmp_path / "c.safetensors")
    for given in (made, tmp_path / "c.safetensors", str(tmp_path / "c.safetensors")):
        longspan.extend(model, "esa", calibration=given)
        assert attachment_of(model) is not None
        with longspan.extended(model, longspan.LongHeads(score="token_max"), calibration=given):
            pass
        longspan.restore(model)
        assert longspan.inspect(model, "esa", calibration=given).method.name == "esa"


def test_extend_refuses_one_that_does_not(tmp_path):
    model, made = make("llama"), calibrated(make("llama"))
    longspan.extend(model, "dca")
    attached = attachment_of(model)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1
    for other, given, words in (
        (model, made, "weights of LlamaForCausalLM"),
        (model, tmp_path / "none.safetensors", "does not exist"),
        (model, 7, "not int"),
        (make("llama").bfloat16(), made, "runs in bfloat16"),
        (make("llama-mha"), made, "4 key heads of 16"),
        (make("gemma2"), made, r"layers \[1\]"),
    ):
        with pytest.raises(CalibrationError, match=words):
            longspan.extend(other, "full", calibration=given)
    assert attachment_of(model) is attached


def test_weights_out_of_memory_are_named():
    model = make("llama")
    model.lm_head.to("meta")
    with pytest.raises(longspan.LongspanError, match="lm_head.weight is not in memory"):
        weights_hash(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_that_are_no_tensors_are_named_before_a_text_is_read(tmp_path):
    model = quantize_dynamic(make("llama"), {torch.nn.Linear}, dtype=torch.qint8)
    lengths: list[int] = []
    model.lm_head.register_forward_pre_hook(lambda module, args: lengths.append(args[0].shape[1]))
    with pytest.raises(longspan.LongspanError, match="_packed_params is not a tensor but a tuple .*cannot be hashed"):
        longspan.calibrate(model, [prompts(1, 200)[0]], tokens=200)
    assert max(lengths) < WINDOW  # those of the probe


def test_weights_of_several_tensors_are_told_apart(tmp_path):
    def quantised(scale: float, first: int = 1, how: object = None) -> torch.nn.Module:
        model = make("llama")
        numbers = (2 * model.lm_head.weight).round().to(torch.int8)
        numbers[0, 0] = first
        model.lm_head.weight = torch.nn.Parameter(Scaled(numbers, torch.tensor(scale), how), requires_grad=False)
        return model

    model, file = quantised(0.5), tmp_path / "calibration.safetensors"
    longspan.calibrate(model, [prompts(1, 200)[0]], tokens=200).save(file)
    longspan.extend(quantised(0.5), "esa", calibration=file)
    for other in (quantised(0.25), quantised(0.5, first=2), quantised(0.5, how="inputs are quantised")):
        with pytest.raises(CalibrationError, match="weights of LlamaForCausalLM"):
            longspan.extend(other, "esa", calibration=file)
        assert fingerprint._sample(other) != fingerprint._sample(model)
    assert fingerprint._sample(quantised(0.5)) == fingerprint._sample(model)
    first, second = quantised(0.5, how=object()), quantised(0.5, how=object())  # their addresses differ
    assert fingerprint._sample(first) == fingerprint._sample(second)


def test_the_observer_costs_nothing_when_off_and_sees_padding():
    model, seen = make("llama"), []
    longspan.extend(model, "full")
    ids = prompts(2, 20)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    attached = attachment_of(model)
    attached.observer = lambda layer, q, k, v, pads: seen.append((layer.index, q.shape, k.shape, pads))
    with torch.no_grad():
        model(ids, attention_mask=mask)
        attached.observer = None
        model(ids, attention_mask=mask)
    shapes = (torch.Size([2, 4, 20, 16]), torch.Size([2, 2, 20, 16]), (0, 5))
    assert seen == [(0, *shapes), (1, *shapes)]


@pytest.mark.long
def test_recall_of_three_solvers_on_the_bundled_model(bundled):
    """On text that was not calibrated on, at the size and the top ESA uses; full size finds everything."""
    model, tokenizer = bundled
    text = heldout_text()
    made = calibrate_each(model, [text[150_000:]], tokenizer=tokenizer, tokens=6144, progress=False)
    report = measure_recall(model, list(made.values()), [token_ids(tokenizer, text)[:2048]], queries=32, progress=False)
    assert (report.top, report.keys, report.queries, report.channels) == (128, 2048 - 8 - 32 - 256, 32, 64)
    assert report.layers == list(range(model.config.num_hidden_layers))
    for kind in ("layer", "heads"):
        assert report.mean(kind, "closed_form") > max(report.mean(kind, "sgd"), report.mean(kind, "pca"))
    assert report.mean("layer", "closed_form") > 0.7
    whole = calibrate_each(
        model, [text[150_000:]], solvers=["pca"], tokenizer=tokenizer, tokens=4096, reduced=64, reduced_per_head=32,
        progress=False,
    )  # fmt: skip
    exact = measure_recall(model, list(whole.values()), [token_ids(tokenizer, text)[:1024]], queries=8, progress=False)
    assert min(min(row.layer, row.heads) for row in exact.rows) > 0.995


def test_measuring_what_cannot_be_measured():
    model = make("llama")
    made, other = calibrated(model), calibrated(model, reduced=3)
    long = prompts(1, 300)[0]
    for given, texts, settings, words in (
        ([], [long], {}, "no calibration"),
        ([made, other], [long], {}, "one size"),
        ([made, made], [long], {}, "different solvers"),
        ([made], [long[:100]], {}, "100 tokens leave 0 keys"),
        ([made], [long], {"top": 500}, "top 500"),
        ([made], [long, long[:-1]], {}, r"one length, not of \[299, 300\]"),
        ([made], [], {}, "one length"),
    ):
        with pytest.raises(CalibrationError, match=words):
            measure_recall(model, given, texts, queries=128, progress=False, **settings)
    with pytest.raises(CalibrationError, match="4 key heads"):
        measure_recall(make("llama-mha"), [made], [long], progress=False)


def test_recall_of_a_calibration_of_other_weights_is_not_measured():
    model = make("llama")
    made = calibrated(model)
    check_calibration(model, made)
    with torch.no_grad():
        model.lm_head.weight += 1
    with pytest.raises(CalibrationError, match="differ from the calibrated weights"):
        measure_recall(model, [made], [prompts(1, 150)[0]], queries=20, top=5, progress=False)
    with pytest.raises(CalibrationError, match="differ from the calibrated weights"):
        check_calibration(model, made)
    with pytest.raises(CalibrationError, match="4 key heads"):
        check_calibration(make("llama-mha"), made)


def test_the_bundled_calibration_fits_the_bundled_model(bundled):
    made = longspan.bundled_calibration()
    assert isinstance(made, Calibration)
    assert (made.reduced, made.reduced_per_head, made.model_id, made.solver) == (8, 4, "bundled", "closed_form")
    assert (FOLDER / "calibration.safetensors").stat().st_size < 100_000
    assert longspan.inspect(bundled[0], "esa", calibration=made).window == made.window == 512


@torch.no_grad()
def test_a_cache_knows_its_calibration(bundled):
    model, _tokenizer = bundled
    ids = torch.randint(0, 1000, (1, 20))
    with longspan.extended(model, "esa", calibration=longspan.bundled_calibration()):
        cache = model(ids, use_cache=True).past_key_values
    with longspan.extended(model, "esa", calibration=longspan.bundled_calibration()):  # loaded again, the same maps
        model(ids, past_key_values=cache)
    with longspan.extended(model, "esa"), pytest.raises(longspan.CacheError, match="another calibration"):
        model(ids, past_key_values=cache)


def test_auto_takes_a_calibration_and_uses_it_where_it_chooses(bundled):
    model, _ = bundled
    for length, name in ((512, "full"), (2048, "dca"), (100_000, "esa")):
        report = longspan.inspect(model, "auto", calibration=longspan.bundled_calibration(), length=length)
        assert report.method.name == name
