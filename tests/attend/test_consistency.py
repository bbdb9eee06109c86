"""Decoding, prefill in pieces, padding and the window: the ways in which one computation must equal another.

All in fp64, where only the order of additions may differ.
"""

from __future__ import annotations

import pytest
import torch

from longspan.attend import Attender
from longspan.memory import KVStore
from longspan.methods import METHODS
from support.cases import ROPES, all_cases, assert_same, build, every_other, in_pieces, in_turn, make_qkv

N = 83
SCALE = 0.25
NAN = float("nan")
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
ODD_PIECES = (1, 3, 30, 31, 53, 70, N)

pytestmark = pytest.mark.usefixtures("poisoned")


def dense(case):
    """How many first queries keep everything, whatever the calls; a piece ends there."""
    return case.method.selection(case.window).first_query if case.method.call_dependent else case.window


ARRIVING = {
    "tokens": ("flash_cpu", range(1, N)),
    "pieces": ("flash_cpu", ODD_PIECES),
    "pieces through torch": ("torch", ODD_PIECES),
}


@pytest.mark.parametrize(("case", "impl", "ends"), in_turn(all_cases(windows=(24, 7)), ARRIVING, every=2))
def test_decode_equals_prefill(case, impl, ends, rope):
    # A method that follows the total length, or the pieces that arrive, is exempt beyond the window.
    n = dense(case) if case.follows_call else N
    qkv = make_qkv(n, batch=2)
    whole = Attender(case.method, case.window)(*qkv, rope, scale=SCALE)
    cuts = [*(end for end in ends if end < n), n]
    out = in_pieces(Attender(case.method, case.window, impl), qkv, rope, cuts, KVStore(), scale=SCALE)
    assert_same(out, whole)


WHOLE_PIECES = {
    "each": (lambda case, borders: borders,),
    "three at once": (lambda case, borders: sorted({*borders[::3], N}),),
    "all at once": (lambda case, borders: sorted({dense(case), N}),),
}


@pytest.mark.parametrize(("case", "cuts"), in_turn(all_cases(selecting=True), WHOLE_PIECES, every=2))
def test_pieces_that_end_where_the_methods_own_do(case, cuts, rope):
    """Methods that choose per piece: prefill in whole pieces, or in several at once, equals prefill at once."""
    qkv = make_qkv(N, batch=2)
    whole = Attender(case.method, case.window)(*qkv, rope, scale=SCALE)
    size = case.method.query_chunk if case.method.call_dependent else 1
    borders = cuts(case, [*range(size, N, size), N])
    out = in_pieces(Attender(case.method, case.window), qkv, rope, borders, KVStore(), scale=SCALE)
    assert_same(out, whole)


@pytest.mark.parametrize(
    "case",
    [
        # Of the others each step equals the prefill of all tokens, in which no row depends on later ones.
        c
        if c.id.endswith("-defaults") or c.values[0].method.length_dependent
        else pytest.param(*c.values, id=c.id, marks=pytest.mark.long)
        for c in all_cases()
        if not c.values[0].method.call_dependent
    ],
)
def test_each_decoding_step_equals_one_call_over_all_tokens(case, rope):
    qkv = make_qkv(N)
    attender, store = Attender(case.method, case.window), KVStore()
    in_pieces(attender, qkv, rope, [70], store, scale=SCALE)
    for n in range(71, N + 1):
        step = attender(*(x[:, :, n - 1 : n] for x in qkv), rope, scale=SCALE, store=store)
        whole = Attender(case.method, case.window)(*(x[:, :, :n] for x in qkv), rope, scale=SCALE)
        assert_same(step, whole[:, :, -1:])


@pytest.mark.parametrize(("case", "sinks"), in_turn(all_cases(), {"no sinks": (None,), "sinks": (SINKS,)}, every=4))
def test_padded_batch_equals_row_by_row(case, rope, sinks):
    pads = (0, 5, 5, 30, 1)
    q, k, v = make_qkv(N, batch=len(pads))
    for row, pad in enumerate(pads):
        for x in (q, k, v):
            x[row, :, :pad] = NAN
    cuts = (12, 47, *range(78, N + 1))  # the fourth row's first piece is padding throughout
    attender = Attender(case.method, case.window)
    out = in_pieces(attender, (q, k, v), rope, cuts, KVStore(), scale=SCALE, padding=pads, sinks=sinks)
    for row, pad in enumerate(pads):
        alone = tuple(x[row : row + 1, :, pad:] for x in (q, k, v))
        own_cuts = [c - pad for c in cuts if c > pad]
        expected = in_pieces(attender, alone, rope, own_cuts, KVStore(), scale=SCALE, sinks=sinks)
        assert (out[row, :, :pad] == 0).all()
        assert_same(out[row : row + 1, :, pad:], expected)


@pytest.mark.parametrize("pads", [(0, 9), (9, 9)], ids=["mixed", "equal"])
@pytest.mark.parametrize("case", all_cases(variants=False))
def test_padding_without_a_store(case, rope, pads):
    qkv = make_qkv(N, batch=2)
    for x in qkv:
        x[1, :, :9] = NAN
    out = Attender(case.method, case.window)(*qkv, rope, scale=SCALE, padding=pads)
    alone = Attender(case.method, case.window)(*(x[1:, :, 9:] for x in qkv), rope, scale=SCALE)
    assert_same(out[1:, :, 9:], alone)


@pytest.mark.parametrize(("case", "total"), in_turn(all_cases(), {str(n): (n,) for n in (N, 24, 20)}))
def test_exact_queries_equal_the_stock_model(case, rope, total):
    qkv = make_qkv(total)
    exact = min(case.method.exact_queries(case.window, total), total)
    full = METHODS["full"]().resolve(case.window)
    ours = Attender(case.method, case.window)(*qkv, rope, scale=SCALE)
    stock = Attender(full, case.window)(*qkv, rope, scale=SCALE)
    # The angles are fp32, and equal distances are reached from other positions, so equality is fp32's.
    assert_same(ours[:, :, :exact].float(), stock[:, :, :exact].float())


@pytest.mark.parametrize("case", all_cases(windows=(24, 7, 64), selecting=False))
def test_exact_queries_are_the_first_that_nothing_changes(case):
    """``exact_queries`` never promises too much, and what limits it is really the row after, or the window."""
    n = 4 * case.window
    exact = case.method.exact_queries(case.window, n)
    keep, rel = case.dense(n)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    changed = ((keep != (j <= i)) | ((rel != i - j) & keep)).any(dim=1)
    first = int(changed.nonzero()[0]) if changed.any() else n
    assert exact <= min(first, case.window)
    if case.method.plain_queries(case.window) == exact != 0 and case.name not in ("self-extend", "string"):
        # Where the grouped or shifted distance meets the true one at the border, a row or more goes unclaimed.
        assert exact == min(first, case.window) or _joins_smoothly(case)


def _joins_smoothly(case):
    """DCA whose clamp ``c - 1`` equals the distance it replaces: ``s + w + 1 = c`` claims one row less."""
    parts = case.method.parameters()
    return case.name == "dca" and parts["chunk_size"] + parts["local_window"] < parts["window"]


@pytest.mark.parametrize(
    "name", [name for name, cls in METHODS.items() if cls().resolve(64).exact_queries(64, 256) < 64]
)
def test_the_row_after_the_exact_ones_differs(name, rope):
    """At the defaults of the methods that change rows inside the window."""
    case = build(name, {}, 64)
    n = 256
    exact = case.method.exact_queries(64, n)
    qkv = make_qkv(n)
    ours = Attender(case.method, 64)(*qkv, rope, scale=SCALE)
    stock = Attender(METHODS["full"]().resolve(64), 64)(*qkv, rope, scale=SCALE)
    differs = ((ours - stock).abs().amax(dim=(0, 1, 3)) > 1e-9).nonzero()[0].item()
    # Row 0 sees itself alone and is equal whatever the angles; the first far key may land on its true distance.
    assert exact <= differs <= exact + 2


@pytest.mark.parametrize("case", every_other(all_cases()))
def test_crop_and_append_again(case, rope):
    qkv = make_qkv(60, batch=2)
    wrong = tuple(x + 1 for x in make_qkv(17, batch=2, seed=1))
    attender, straight, winding = Attender(case.method, case.window), KVStore(), KVStore()
    # What InfLLM chooses later depends on the pieces that came before.
    in_pieces(attender, qkv, rope, [33, 35, 60] if case.method.call_dependent else [60], straight, scale=SCALE)
    in_pieces(attender, qkv, rope, [33], winding, scale=SCALE)
    attender(*wrong, rope, scale=SCALE, store=winding)
    winding.crop(17)
    in_pieces(attender, qkv, rope, [35, 60], winding, scale=SCALE)
    for a, b in zip([*straight.keys, straight.values], [*winding.keys, winding.values], strict=True):
        assert torch.equal(a, b)
    step = make_qkv(1, batch=2, seed=2)
    assert_same(*(attender(*step, rope, scale=SCALE, store=store) for store in (straight, winding)))


@pytest.mark.parametrize("length", [131, *(pytest.param(n, marks=pytest.mark.long) for n in (20, 149))])
@pytest.mark.parametrize("case", every_other(all_cases()))
def test_going_back_as_far_as_it_can(case, rope, length):
    """Where an index lacks the inputs for some length, to one before it; what follows is as if nothing had been."""
    qkv = make_qkv(150, batch=2)
    attender, straight, winding = Attender(case.method, case.window), KVStore(), KVStore()
    in_pieces(attender, qkv, rope, [70, 150], winding, scale=SCALE)
    kept = winding.croppable(length)
    assert 0 <= kept <= length
    winding.crop(150 - kept)
    assert winding.length == kept
    in_pieces(attender, qkv, rope, [150], winding, scale=SCALE)
    in_pieces(attender, qkv, rope, [cut for cut in (70, kept) if 0 < cut <= kept] + [150], straight, scale=SCALE)
    step = make_qkv(1, batch=2, seed=2)
    assert_same(*(attender(*step, rope, scale=SCALE, store=store) for store in (straight, winding)))


@pytest.mark.parametrize("case", all_cases(variants=False))
def test_stored_rotations(case, any_rope):
    attender, store = Attender(case.method, case.window), KVStore()
    attender(*make_qkv(5), any_rope, scale=SCALE, store=store)
    assert len(store.keys) == attender.stored_rotations


def test_layers_with_different_angles_share_a_step():
    """One attender runs all layers of a model, which may have more than one rotation."""
    ropes = [ROPES["half-all"](), ROPES["half-leading"]()]
    for case in (build("dca", {}), build("dynamic-ntk", {}), build("yarn", {})):
        shared, stores = Attender(case.method, case.window), [KVStore(), KVStore()]
        qkv = make_qkv(40)
        for a, b in ((0, 30), (30, 39), (39, 40)):
            piece = tuple(x[:, :, a:b] for x in qkv)
            outs = [shared(*piece, r, scale=SCALE, store=s) for r, s in zip(ropes, stores, strict=True)]
        for out, layer in zip(outs, ropes, strict=True):
            alone = Attender(case.method, case.window)(*qkv, layer, scale=SCALE)
            assert_same(out, alone[:, :, -1:])


ASKED = {
    "backward": lambda loss, inputs: loss.backward(),
    "backward of inputs": lambda loss, inputs: loss.backward(inputs=inputs),
    "grad": lambda loss, inputs: torch.autograd.grad(loss, inputs),
}


@pytest.mark.parametrize("asked", ASKED)
def test_flash_refuses_gradients_across_ranges_however_they_are_asked_for(asked):
    q, k, v = (x.requires_grad_() for x in make_qkv(40))
    case = build("dca", {})
    out = Attender(case.method, case.window, impl="flash_cpu")(q, k, v, ROPES["half-all"](), scale=SCALE)
    with pytest.raises(RuntimeError, match="flash_cpu does not support gradients"):
        ASKED[asked](out.square().sum(), [q, k, v])


def gradients(case, impl, rope, weight, sinks=None):
    """Gradients of q, k and v, after a first call in inference mode, whose leftovers must serve this one too."""
    attender = Attender(case.method, case.window, impl)
    qkv = make_qkv(40)
    with torch.inference_mode():
        attender(*qkv, rope, scale=SCALE, sinks=sinks)
    for x in qkv:
        x.requires_grad_()
    (attender(*qkv, rope, scale=SCALE, sinks=sinks) * weight).sum().backward()
    return [x.grad for x in qkv]


@pytest.mark.parametrize("sinks", [None, SINKS], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("case", all_cases(variants=False, selecting=False))
def test_gradients_are_right_or_refused(case, rope, sinks):
    weight = make_qkv(40, seed=1)[0]
    truth = gradients(case, "reference", rope, weight, sinks)
    for a, b in zip(gradients(case, "torch", rope, weight, sinks), truth, strict=True):
        assert_same(a, b)
    try:
        ours = gradients(case, "flash_cpu", rope, weight, sinks)
    except RuntimeError as error:
        assert "impl='torch'" in str(error)
        assert sinks is not None or len(case.method.bands(case.window)) > 1
    else:
        for a, b in zip(ours, truth, strict=True):
            assert_same(a, b)


@pytest.mark.parametrize("case", all_cases(variants=False, selecting=True))
def test_choosing_gives_no_gradients(case, rope):
    with pytest.raises(RuntimeError, match=f"{case.name} .* does not support gradients"):
        gradients(case, "auto", rope, 1.0)
