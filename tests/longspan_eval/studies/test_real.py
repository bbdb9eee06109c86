"""The board of real models, on the bundled one: texts, readings, and what samples come to."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longspan.bundled import heldout_text, load_bundled
from longspan.errors import LongspanError
from longspan_eval.journal import read_samples
from longspan_eval.planted import ROOM, TARGETS, says
from longspan_eval.reading import Asking, PlantedReading
from longspan_eval.sample import Sample
from longspan_eval.session import Session
from longspan_eval.spec import parse_spec

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import real_report  # noqa: E402
from planted import COUNT, ESSAYS, KINDS, Texts  # noqa: E402
from real_table import BLOCKS, CUT, base_of, key, parts, summaries  # noqa: E402
from samples import ARCHIVES  # noqa: E402

LENGTH, WINDOW = 3072, 512
RESULTS = BENCHMARKS / "results" / "real"


@pytest.fixture(scope="module")
def session():
    return Session(*load_bundled())


@pytest.fixture(scope="module")
def texts(session, tmp_path_factory):
    folder = tmp_path_factory.mktemp("novels")
    for name in ("first", "second"):
        (folder / f"{name}.txt").write_text(heldout_text(), encoding="utf-8")
    (folder.parent / ESSAYS).write_text(json.dumps({"text": heldout_text()}), encoding="utf-8")
    return Texts(folder, session.tokenizer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_its_length_and_everything_planted_once(texts, session, kind):
    text = texts.planted(kind, 0, LENGTH)
    assert len(text.input_ids) == LENGTH - ROOM
    said = session.tokenizer.decode(text.input_ids)
    places = [said.index(one.statement.strip()) for one in text.asked]
    assert places == sorted(places)
    assert len(places) == (COUNT if kind[0] != "p" else 1)
    assert all(said.count(one.statement.strip()) == 1 for one in text.asked)


def test_the_scored_tokens_are_the_novels_own_at_its_end(texts, session):
    text = texts.planted("facts", 0, LENGTH)
    first = len(text.input_ids) - TARGETS
    assert min(text.scored) >= first and len(set(text.scored)) == len(text.scored)
    scored = session.tokenizer.decode([text.input_ids[n] for n in text.scored])
    assert not any(one.statement.strip() in scored for one in text.asked)
    missing = [text.input_ids[n] for n in range(first, len(text.input_ids)) if n not in set(text.scored)]
    late = session.tokenizer.decode(text.input_ids[first:])
    inside = [one for one in text.asked if one.statement in late]
    assert inside and all(one.value in session.tokenizer.decode(missing) for one in inside)


def test_a_longer_text_of_one_number_only_goes_on(texts):
    short, long = (texts.planted("facts", 1, length) for length in (LENGTH, LENGTH + 512))
    assert short.asked == long.asked and short.source == long.source == "second"
    assert short.input_ids[:100] == long.input_ids[:100]


def test_a_novel_that_ends_too_soon_and_a_folder_without_novels_are_refused(texts, session, tmp_path):
    with pytest.raises(ValueError, match="has no 900000 tokens"):
        texts.planted("facts", 0, 900_000)
    with pytest.raises(LongspanError, match="holds no text files"):
        Texts(tmp_path, session.tokenizer)


def test_an_answer_says_a_value_as_a_word():
    assert says(" in Lisbon.", "Lisbon") and says("lisbon with", "Lisbon")
    assert not says("81071 this", "8107") and not says("", "8107")


def test_a_question_leaves_what_was_read_as_it_was(texts, session):
    """Questions asked from copies answer as if each were the only one."""
    reading = PlantedReading(parse_spec("esa"), LENGTH, 0, kind="facts", window=WINDOW, texts=texts)
    sample = session.measure(reading)
    assert sample.error is None and sample.scored > TARGETS / 2 and math.isfinite(sample.loss)
    text = texts.planted("facts", 0, LENGTH)
    last = text.asked[-1]
    session.attach(reading.spec, LENGTH, window=WINDOW)
    with torch.inference_mode():
        out = session.model(torch.tensor([text.input_ids]), use_cache=True)
        alone = Asking(session, out[1]).answer(last.question, last.value)
    assert " ".join(alone.split()) == sample.prediction.split(" | ")[-1]


def test_stock_that_is_cut_reads_the_windows_end(texts, session):
    reading = PlantedReading(parse_spec("stock"), LENGTH, 0, kind="facts", window=WINDOW, cut=True, texts=texts)
    sample = session.measure(reading)
    assert sample.tokens == WINDOW - ROOM and sample.scored == 0


def test_keys_say_what_is_measured_and_every_block_has_its_base(texts):
    for name, blocks in BLOCKS.items():
        readings = [reading for block in blocks for reading in block.readings(texts)]
        for reading in readings:
            row = CUT if reading.cut else reading.spec.label
            where = reading.kind, reading.window, reading.length, reading.seed, row, name
            assert parts(key(reading, name)) == where
        places = {(r.kind, r.window, r.length, r.seed) for r in readings}
        base = {(r.kind, r.window, r.length, r.seed) for r in readings if r.spec.label == base_of(name, r.length)}
        assert base == places


def test_samples_come_to_shares_of_the_ceiling_and_paired_ratios(tmp_path):
    def sample(found, loss):
        figures = {"asked": 2.0, "read_cpu": 8.0, "found0": 1.0, "found1": float(found == 2)}
        return Sample("", 4096, 0, None, "", loss=loss, scored=2000, tokens=4000, figures=figures)

    samples = {
        "facts|1024|4096|0|stock|m": sample(2, 3.0),
        "facts|1024|4096|1|stock|m": sample(2, 4.0),
        "facts|1024|4096|0|dca|m": sample(1, 3.0),
        "facts|1024|4096|1|dca|m": sample(2, 4.0 + math.log(1.21)),
        "facts|1024|4096|0|esa|m": replace(sample(0, math.nan), error="out of memory"),
    }
    stock, dca, esa = summaries(samples)
    assert (stock.found, stock.asked, stock.ratio) == (4, 4, 1.0)
    assert (dca.found, dca.asked, dca.ceiling, dca.compared) == (3, 4, 4, 2)
    assert dca.ratio == pytest.approx(1.1) and dca.read == 0.002
    assert dca.ratio_interval == pytest.approx((1.1 / 1.1**12.706, 1.1 * 1.1**12.706), rel=1e-3)
    assert esa.error == "out of memory" and esa.asked == 0
    page = tmp_path / "page.md"
    page.write_text("# Before\n\n<!-- board -->\n<!-- /board -->\n")
    real_report.write(samples, tmp_path, page)
    written = json.loads((tmp_path / "real.json").read_text())
    assert [one["row"] for one in written] == ["stock", "dca", "esa"]
    assert "| `dca` | 3/4 (30-95) | 0.75 | 1.100" in page.read_text()


@pytest.mark.skipif((BENCHMARKS.parent / "PKG-INFO").exists(), reason="this is an sdist, which leaves the samples out")
def test_the_page_and_the_table_are_those_of_the_committed_samples(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(real_report.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    samples = {key: one for file in sorted(RESULTS.glob(ARCHIVES)) for key, one in read_samples(file).items()}
    real_report.write(samples, tmp_path, page)
    assert page.read_text(encoding="utf-8") == real_report.PAGE.read_text(encoding="utf-8")
    assert (tmp_path / "real.json").read_bytes() == (RESULTS / "real.json").read_bytes()
