"""Operations and bytes of ESA, by hand, and as the code does them."""

from __future__ import annotations

import pytest

import longspan
from longspan.bundled import FOLDER, load_bundled
from longspan_eval.reproduce import esa_methods, esa_scores
from longspan_eval.reproduce.counts import Counted, Recalled
from longspan_eval.reproduce.operations import Shape, Sizes, cache_overhead, counted_ratio, limit, operation_ratio
from longspan_eval.reproduce.session import PaperSession
from longspan_eval.reproduce.texts import at_hand
from longspan_eval.spec import parse_spec
from longspan_eval.subject import Subject
from longspan_eval.windows import build, find_windows

LLAMA, MISTRAL = Shape(4096, 4096, 32), Shape(4096, 1024, 32)
PAPER = Sizes(128, 4096, 2048, 128)


def test_by_hand():
    # A key takes 4 x 4,096 + 3 x 32 operations. Attended to: 128 + 4,096 + 2,048 tokens and the token itself. Scored:
    # the 28,543 between the first and the local ones, by 128 numbers, multiplied, added up and compared. Reduced to
    # those: a query and a key.
    whole = 16_480 * 32_768
    by_hand = (16_480 * 6_273 + 257 * 28_543 + 4 * 4_096 * 128 + 2 * 128) / whole
    assert operation_ratio(32_768, MISTRAL, PAPER) == by_hand == pytest.approx(0.2089, abs=5e-5)


def test_without_end_it_is_the_figure_published():
    assert limit(LLAMA, 128) == 257 / 16_480 == pytest.approx(0.0156, abs=5e-5)
    assert operation_ratio(10**9, LLAMA, PAPER) == pytest.approx(limit(LLAMA, 128), rel=1e-3)


def test_while_everything_is_attended_to_nothing_is_saved():
    assert operation_ratio(6273, LLAMA, PAPER) == operation_ratio(10, LLAMA, PAPER) == 1.0
    assert operation_ratio(6800, LLAMA, PAPER) < 1.0


@pytest.mark.parametrize(("shape", "overhead"), [(MISTRAL, 0.0625), (LLAMA, 0.015625)])
def test_cache(shape, overhead):
    assert cache_overhead(shape, 128) == overhead


def test_counted_from_nothing_is_nothing():
    assert counted_ratio(100, 0, 0, LLAMA, 128) == 0.0 and counted_ratio(100, 0, 100, LLAMA, 128) == 1.0


def test_scores_in_full_take_no_reducing():
    # 1,024 channels of a key, multiplied, added up and compared; no query and no key is made smaller.
    by_hand = (16_480 * 6_273 + 2_049 * 28_543) / (16_480 * 32_768)
    assert operation_ratio(32_768, MISTRAL, Sizes(128, 4096, 2048, None)) == by_hand


def test_without_a_calibration_no_reducing_is_counted():
    model, tokenizer = load_bundled()
    session = PaperSession(model, tokenizer, Subject.of(model, tokenizer), scale="quick", windows=(8192,))
    cells = {cell.row: cell for cell in esa_scores.TABLES[1].cells(session) if "this model" in cell.row}
    assert not [row for row in cells if "d' =" in row]  # there are no reduced keys
    counted = cells["counted: this model, d_H 192, scores in full, 1,024 tokens"].measures[0]
    figures = session.measure(counted).figures
    session.detach()
    key = 4 * 192 + 3 * 6
    by_hand = ((2 * 64 + 1) * figures["scored"] + key * figures["attended"]) / (key * 1024)
    assert figures["ratio"] == pytest.approx(by_hand, rel=1e-9)
    assert "no calibration is given" in esa_scores.TABLES[1].protocol(session)


def test_recall_is_among_the_keys_that_esa_chooses_from():
    model, tokenizer = load_bundled()
    session = PaperSession(model, tokenizer, Subject.of(model, tokenizer), scale="quick")
    file = FOLDER / "calibration.safetensors"
    session.shared["components"] = longspan.Calibration.load(file)  # making them would take long
    asked = Recalled(
        parse_spec("stock"), 600, 0, text=at_hand(tokenizer), queries=20, top=10, initial=3, local=100,
        calibration=file, sha256="0" * 64,
    )  # fmt: skip
    sample = session.measure(asked)
    assert sample.error is None and sample.figures["keys"] == 600 - 20 - 3 - 100


def test_the_text_at_hand_is_the_one_that_perplexity_reads():
    tokenizer = load_bundled()[1]
    text = at_hand(tokenizer)
    windows = find_windows(tokenizer, [], longest=4096, mode="whole")
    assert windows.texts == ((text.name, len(text.ids)),)
    first = build(tokenizer, length=4096, seed=0, record=windows.records[0])
    assert first.input_ids == list(text.ids[:4096])


def test_the_code_does_what_is_computed():
    model, tokenizer = load_bundled()
    session = PaperSession(
        model, tokenizer, Subject.of(model, tokenizer), scale="quick", calibration=FOLDER / "calibration.safetensors"
    )
    shape, sizes = Shape.of(model), Sizes(8, 256, 128, 8)
    assert shape == Shape(192, 64, 6)
    length = 1025  # the last token begins a piece, so the local ones are those right before it
    sample = session.measure(Counted(esa_methods.own(session), length, text=at_hand(tokenizer), reduced=8))
    session.detach()
    assert sample.error is None
    assert sample.figures["attended"] == 8 + 256 + 128 + 1
    assert sample.figures["scored"] == length - 1 - 8 - 256
    assert sample.figures["ratio"] == pytest.approx(operation_ratio(length, shape, sizes), rel=1e-9)
    assert sample.figures["overhead"] == pytest.approx(cache_overhead(shape, 8), rel=1e-6)
    assert longspan.Calibration.load(session.calibration).reduced == 8
