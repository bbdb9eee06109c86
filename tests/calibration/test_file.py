"""Projections, the file that holds them, recall: what they compute and what they refuse."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from longspan.calibration import Calibration, Projection, RecallReport, RecallRow, recall
from longspan.errors import CalibrationError

HEADS, SIZE, REDUCED, PER_HEAD = 2, 6, 4, 3


def projection(per_head=False, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shape = (HEADS, PER_HEAD, SIZE) if per_head else (REDUCED, HEADS * SIZE)
    return Projection(torch.randn(shape, generator=draw), torch.randn(shape, generator=draw))


def calibration(**changes):
    made = {
        "layers": {0: projection(seed=1), 3: projection(seed=2)},
        "heads": {0: projection(True, seed=3), 3: projection(True, seed=4)},
        "reduced": REDUCED,
        "reduced_per_head": PER_HEAD,
        "solver": "closed_form",
        "model_id": "some/model",
        "weights_sha256": "ab" * 32,
        "dtype": "float32",
        "window": 64,
        "tokens": 1000,
    }
    return Calibration(**{**made, **changes})


@pytest.fixture
def states():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(2, 6, 9, SIZE, generator=draw), torch.randn(2, HEADS, 30, SIZE, generator=draw)


def exact(q, k):
    """Scores of every query head with its key head, ``[B, H, T, N]``, written out."""
    return torch.stack([q[:, h] @ k[:, h // (q.shape[1] // k.shape[1])].mT for h in range(q.shape[1])], 1)


def test_a_projection_of_full_rank_gives_the_exact_scores(states):
    q, k = states
    whole = Projection(torch.eye(HEADS * SIZE), torch.eye(HEADS * SIZE))
    torch.testing.assert_close(whole.reduce_queries(q) @ whole.reduce_keys(k).mT, exact(q, k).sum(1))
    each = Projection(*(torch.eye(SIZE).expand(HEADS, SIZE, SIZE).contiguous() for _ in "qk"))
    grouped = exact(q, k).unflatten(1, (HEADS, -1)).sum(2)
    torch.testing.assert_close(each.reduce_queries(q) @ each.reduce_keys(k).mT, grouped)
    assert recall(q, k, whole, 5) == recall(q, k, each, 5) == 1.0


def test_channels_are_head_major(states):
    q, k = states
    pick = torch.zeros(1, HEADS * SIZE)
    pick[0, 1 * SIZE + 2] = 1
    one = Projection(pick, pick)
    assert torch.equal(one.reduce_keys(k)[..., 0], k[:, 1, :, 2])
    torch.testing.assert_close(one.reduce_queries(q)[..., 0], q[:, 3:, :, 2].sum(1))


def test_reduced_dtypes_are_promoted(states):
    q, k = (x.bfloat16() for x in states)
    for maps in (projection(), projection(True)):
        assert maps.reduce_queries(q).dtype == maps.reduce_keys(k).dtype == torch.float32


@pytest.mark.parametrize("top", [1, 4, 30])
def test_recall_counts(states, top):
    q, k = states
    for maps, scores in (
        (projection(), exact(q, k).sum(1)),
        (projection(True), exact(q, k).unflatten(1, (HEADS, -1)).sum(2)),
    ):
        reduced = (maps.reduce_queries(q) @ maps.reduce_keys(k).mT).flatten(0, -2)
        pairs = zip(scores.flatten(0, -2), reduced, strict=True)
        shares = [len({*a.topk(top).indices.tolist()} & {*b.topk(top).indices.tolist()}) / top for a, b in pairs]
        assert recall(q, k, maps, top) == pytest.approx(sum(shares) / len(shares), abs=1e-6)
    assert top == 30 or 0 < recall(q, k, projection(), top) < 1


@pytest.mark.parametrize("top", [0, 31])
def test_recall_of_more_keys_than_there_are(states, top):
    with pytest.raises(ValueError, match=f"top must be 1 to the number of keys, 30, not {top}"):
        recall(*states, projection(), top)


@pytest.mark.parametrize(
    ("q", "k", "words"),
    [
        (torch.zeros(4, 12), torch.zeros(5, 12), "differ in shape"),
        (torch.zeros(4, 12).double(), torch.zeros(4, 12), "theta_q must be a float32"),
        (torch.zeros(4, 12), torch.zeros(12), "theta_k must be a float32"),
        (torch.zeros(0, 12), torch.zeros(0, 12), "theta_q must be a float32"),
        (torch.zeros(4, 12), torch.full((4, 12), float("inf")), "theta_k contains numbers that are not finite"),
    ],
)
def test_projections_that_cannot_be(q, k, words):
    with pytest.raises(ValueError, match=words):
        Projection(q, k)


def test_queries_that_do_not_fall_into_groups():
    with pytest.raises(ValueError, match="5 query heads"):
        projection(True).reduce_queries(torch.zeros(1, 5, 3, SIZE))
    with pytest.raises(ValueError, match="of 7 channels"):
        projection(True).reduce_queries(torch.zeros(1, 6, 3, 7))


def test_a_file_gives_back_everything(tmp_path):
    made = calibration()
    made.save(tmp_path / "a.safetensors")
    read = Calibration.load(str(tmp_path / "a.safetensors"))
    assert read.settings() == made.settings()
    for kind in ("layers", "heads"):
        ours, theirs = getattr(read, kind), getattr(made, kind)
        assert list(ours) == list(theirs) == [0, 3]
        for index in ours:
            assert torch.equal(ours[index].theta_q, theirs[index].theta_q)
            assert torch.equal(ours[index].theta_k, theirs[index].theta_k)
    read.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"solver": "magic"}, "closed_form.*magic"),
        ({"reduced": 0}, "reduced must be an integer ≥ 1, not 0"),
        ({"window": True}, "window must be an integer"),
        ({"tokens": 1.5}, "tokens must be an integer"),
        ({"weights_sha256": None}, "weights_sha256 must be a string"),
        ({"layers": {}, "heads": {}}, "same layers"),
        ({"layers": {0: projection()}}, "same layers"),
        ({"reduced": 5}, "to 4 numbers and 3 per head.*reduced=5 and reduced_per_head=3"),
        ({"reduced_per_head": 2}, "to 4 numbers and 3 per head.*reduced_per_head=2"),
        ({"layers": {0: projection(True), 3: projection(True)}}, "`layers` must have maps"),
        ({"layers": {n: Projection(torch.zeros(4, 13), torch.zeros(4, 13)) for n in (0, 3)}}, "13 channels"),
    ],
)
def test_parts_that_do_not_fit_each_other(changes, words):
    with pytest.raises(CalibrationError, match=words):
        calibration(**changes)


def damaged(path, change):
    """A calibration file whose tensors and settings ``change`` has been at."""
    made = calibration()
    tensors = {
        f"{kind}.{index}.{which}": getattr(maps, which)
        for kind in ("layers", "heads")
        for index, maps in getattr(made, kind).items()
        for which in ("theta_q", "theta_k")
    }
    settings = {"version": 1, "maps_sha256": made.maps_sha256, **made.settings()}
    change(tensors, settings)
    save_file(tensors, path, metadata={"longspan_calibration": json.dumps(settings)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, s: s.update(version=2), "version 2, and this longspan reads version 1"),
        (lambda t, s: s.pop("version"), "version"),
        (lambda t, s: s.pop("window"), "window"),
        (lambda t, s: s.update(colour="red"), "colour"),
        (lambda t, s: s.update(solver="magic"), "magic"),
        (lambda t, s: t.pop("layers.3.theta_k"), "layers 3 has only theta_q"),
        (lambda t, s: [t.pop(f"heads.3.theta_{x}") for x in "qk"], "same layers"),
        (lambda t, s: t.update(other=torch.zeros(1)), "'other'"),
        (lambda t, s: t.update({"layers.x.theta_q": torch.zeros(1)}), "layers.x.theta_q"),
        (lambda t, s: t.update({"layers.0.theta_q": torch.zeros(4, 12).half()}), "float16"),
        (lambda t, s: t["heads.0.theta_q"].fill_(float("nan")), "not finite"),
        (
            lambda t, s: t["heads.0.theta_q"].view(torch.int32)[0, 0, 0].bitwise_xor_(1),
            "damaged: its maps differ from those",
        ),
    ],
)
def test_damaged_files(tmp_path, change, words):
    path = tmp_path / "bad.safetensors"
    damaged(path, change)
    with pytest.raises(CalibrationError, match=f"(?s)bad.safetensors.*{words}.*longspan calibrate"):
        Calibration.load(path)


def test_a_file_without_a_hash_of_its_maps_is_read(tmp_path):
    damaged(tmp_path / "first.safetensors", lambda tensors, settings: settings.pop("maps_sha256"))
    assert Calibration.load(tmp_path / "first.safetensors").maps_sha256 == calibration().maps_sha256


def test_files_that_are_no_calibration(tmp_path):
    path = tmp_path / "bad.safetensors"
    for make, words in (
        (lambda: None, "does not exist"),
        (lambda: path.write_bytes(b""), "not a complete safetensors"),
        (lambda: path.write_text("hello, this is a text"), "not a complete safetensors"),
        (lambda: calibration().save(path) or path.write_bytes(path.read_bytes()[:-5]), "not a complete safetensors"),
        (lambda: save_file({"x": torch.zeros(1)}, path), "without a longspan calibration"),
        (lambda: save_file({}, path, metadata={"longspan_calibration": "{"}), "bad.safetensors"),
        (lambda: save_file({}, path, metadata={"longspan_calibration": "[1]"}), "bad.safetensors"),
    ):
        make()
        with pytest.raises(CalibrationError, match=words):
            Calibration.load(path)
    with pytest.raises(CalibrationError, match="does not exist"):
        Calibration.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        calibration().save(tmp_path / "nowhere" / "a.safetensors")


FITS = {"weights_sha256": "ab" * 32, "shapes": {0: (HEADS, SIZE), 3: (HEADS, SIZE)}, "dtype": "float32", "model": "M"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights_sha256": "cd" * 32}, "weights of M .*cdcdcd.* differ from .* some/model .*ababab"),
        ({"weights_sha256": "cd" * 32, "dtype": "bfloat16"}, "M runs in bfloat16, .* ran in float32"),
        ({"shapes": {0: (HEADS, SIZE)}}, r"layers \[0, 3\] of some/model, but M is extended in layers \[0\]"),
        ({"shapes": {0: (HEADS, SIZE), 3: (1, SIZE)}}, "layer 3 of M has 1 key heads of 6 .* 2 heads of 6"),
        ({"shapes": {0: (HEADS, 8), 3: (HEADS, SIZE)}}, "layer 0 of M has 2 key heads of 8"),
    ],
)
def test_another_model_is_refused(changes, words):
    calibration().check(**FITS)
    with pytest.raises(CalibrationError, match=words):
        calibration().check(**{**FITS, **changes})


SOLVED = [(layer, solver) for layer in (0, 2) for solver in ("closed_form", "sgd", "pca")]
REPORT = RecallReport(
    tuple(RecallRow(layer, solver, 0.5 + 0.1 * layer, 0.25) for layer, solver in SOLVED),
    top=8, keys=1000, queries=16, reduced=4, reduced_per_head=3, channels=12,
)  # fmt: skip


def test_the_report_prints_every_figure():
    text = str(REPORT)
    assert "top 8 of 1,000 keys, 16 queries" in text and "4 of 12 channels per layer, 3 per key head" in text
    for part in ("closed_form", "sgd", "pca", "summed", "per head", "0.500", "0.700", "0.600", "0.250"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    assert REPORT.mean("layer", "sgd") == pytest.approx(0.6) and REPORT.layers == [0, 2]


def test_the_plot(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    REPORT.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    # matplotlib is installed where tests run.
    monkeypatch.setattr(sys.modules[RecallReport.__module__], "find_spec", lambda name: None)
    with pytest.raises(CalibrationError, match="pip install"):
        REPORT.plot(tmp_path / "b.png")


def test_it_is_shown_without_its_numbers():
    shown = repr(calibration())
    assert len(shown) < 400 and "closed_form" in shown and "tensor" not in shown


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        calibration().reduced = 3
    assert replace(calibration(), tokens=7).tokens == 7
