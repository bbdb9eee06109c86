"""The bundled model: it loads, its tokenizer round-trips, and inside its window it finds passkeys."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path

import pytest
import torch

import longspan
from longspan.bundled import FOLDER, card, heldout_text, load_bundled
from longspan_eval.figure import wilson

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "training"))

from evaluate_window import log_loss, scores, table, unigram_loss
from ship import sizes
from window_tasks import WINDOW_TASKS

WINDOW = 512


@pytest.fixture(scope="module")
def bundled():
    return load_bundled()


def test_loads_as_a_small_llama(bundled):
    model, tokenizer = bundled
    assert model.config.model_type == "llama" and not model.training
    assert model.config.max_position_embeddings == WINDOW
    assert model.config.vocab_size == len(tokenizer)
    assert next(model.parameters()).dtype == torch.float32
    assert model.num_parameters() <= 6_000_000
    assert (FOLDER / "model.safetensors").stat().st_size < 16_000_000


def test_the_card_is_that_of_the_weights(bundled):
    model, _ = bundled
    figures = card()
    assert figures["sha256"] == hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert figures["parameters"] == model.num_parameters() and figures["window"] == WINDOW
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "\n".join(table(figures)) in text and "\n".join(sizes(FOLDER, figures)) in text


def test_the_calibration_is_that_of_the_weights(bundled):
    model, _ = bundled
    longspan.extend(model, "esa", calibration=longspan.bundled_calibration())
    longspan.restore(model)


def test_the_calibration_is_found_beside_the_model():
    assert longspan.bundled.bundled_calibration is longspan.bundled_calibration
    with pytest.raises(AttributeError, match="no attribute 'calibration'"):
        longspan.bundled.calibration  # noqa: B018


def test_loads_in_another_precision():
    model, _ = load_bundled(dtype=torch.bfloat16)
    assert next(model.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("text", ["Plain text.", " two  spaces\n\tand a tab", "café, 漢字, 🙂", "01 and 42"])
def test_tokenizer_round_trips_any_text(bundled, text):
    _, tokenizer = bundled
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_every_digit_is_a_token(bundled):
    _, tokenizer = bundled
    ids = tokenizer("48213", add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode([token]) for token in ids] == list("48213")


def test_heldout_text_is_long_enough_for_64_windows(bundled):
    _, tokenizer = bundled
    text = heldout_text()
    assert text.isascii() and 250_000 < len(text) < 400_000
    assert len(tokenizer(text)["input_ids"]) > 2.5 * 64 * WINDOW


def test_perplexity_is_far_below_unigram(bundled):
    model, tokenizer = bundled
    text = heldout_text()
    assert log_loss(model, tokenizer, text, length=WINDOW, spans=16) < unigram_loss(tokenizer, text) - math.log(3)


@pytest.mark.parametrize("task", ["passkey", "passkey-prose"])
def test_finds_passkeys_in_the_window(bundled, task):
    found = scores(*bundled, WINDOW_TASKS[task], count=20, length=WINDOW, first_seed=1000)
    assert sum(found) >= 19


@pytest.mark.long
@pytest.mark.parametrize("task", ["passkey", "passkey-prose"])
def test_the_bar_of_the_window(bundled, task):
    found = scores(*bundled, WINDOW_TASKS[task], count=200, length=WINDOW)
    assert sum(found) >= 198


@pytest.mark.long
@pytest.mark.parametrize("task", sorted(card()["tasks"]))
def test_what_the_card_says_is_measured_again(bundled, task):
    found = scores(*bundled, WINDOW_TASKS[task], count=40, length=WINDOW, first_seed=1000)
    low, high = wilson(sum(found), 40)
    below, above = card()["tasks"][task]["interval"]
    assert low <= above and below <= high
