"""Make calibrations for a model, and measure how well they find the keys that count."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor
from transformers import PreTrainedModel

from longspan.calibration import (
    SOLVERS,
    Calibration,
    Moments,
    Projection,
    RecallReport,
    RecallRow,
    closed_form,
    flat_keys,
    flat_queries,
    pca,
    recall,
    sgd,
)
from longspan.calibration.solvers import SGD_BATCH, Solver
from longspan.errors import CalibrationError, check_count
from longspan.hf.attach import attachment_of, examine
from longspan.hf.calibration.check import dtype_name, model_name, shapes_of
from longspan.hf.calibration.collect import collect, token_chunks
from longspan.methods import Method
from longspan.model.layer import Layer
from longspan.model.parallel import split_reason
from longspan.model.unwrap import unwrap
from longspan.model.weights import weights_hash

BUDGET = 2 << 30  # bytes of moments and samples held at once; the text is read again for the layers beyond


def calibrate(
    model: PreTrainedModel,
    texts: Iterable[str | Tensor],
    *,
    tokenizer: Any = None,
    reduced: int | None = None,
    reduced_per_head: int | None = None,
    solver: Solver = "closed_form",
    tokens: int = 50_000,
    window: int | None = None,
    model_id: str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Calibration:
    """Find the maps under which short products stand for a model's attention scores (ESA, Eq 7).

    The stock model reads the texts, cut to its window; of each layer only second moments are kept (and with
    ``solver="sgd"`` the queries and keys themselves). The model may be extended already and is left as it was.

    Args:
        model: any model that ``extend`` can be called on.
        texts: of the kind that the model will read, as strings with a ``tokenizer`` or as tensors ``[T]`` int64 of
            token ids. They are read in their order, and no further than ``tokens``.
        reduced: ``d'``, numbers kept of the key of a token in a layer; an eighth of its channels unless given.
        reduced_per_head: ``d''``, the same for each key head; an eighth of its channels unless given.
        solver: ``"closed_form"``, ``"sgd"`` (the paper's) or ``"pca"``; see ``longspan.calibration.solvers``.
        tokens: how many are enough.
        window: tokens of context at most; the trained window unless given.
        model_id: what to call the model in messages; its hub name or folder unless given.
        seed: of ``"sgd"``.
        progress: whether to show a bar on stderr.

    Raises:
        CalibrationError: there is too little text, or it does not fit the model.
        AttachError: the model cannot be extended.
        ValueError: sizes that cannot be.
    """
    return calibrate_each(
        model, texts, solvers=(solver,), tokenizer=tokenizer, reduced=reduced, reduced_per_head=reduced_per_head,
        tokens=tokens, window=window, model_id=model_id, seed=seed, progress=progress,
    )[solver]  # fmt: skip


def calibrate_each(
    model: PreTrainedModel,
    texts: Iterable[str | Tensor],
    *,
    solvers: Sequence[Solver] = SOLVERS,
    tokenizer: Any = None,
    reduced: int | None = None,
    reduced_per_head: int | None = None,
    tokens: int = 50_000,
    window: int | None = None,
    model_id: str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> dict[Solver, Calibration]:
    """``calibrate`` with several solvers on the same queries and keys, by solver; shapes as for ``calibrate``."""
    model = unwrap(model)
    for solver in solvers:
        if solver not in SOLVERS:
            raise CalibrationError(f"the solver must be one of {', '.join(SOLVERS)}, not {solver!r}")
    tokens = check_count("tokens", tokens)
    seed = check_count("seed", seed, 0, "the generator")
    size, shapes = _window_and_shapes(model, window)
    channels = [heads * dim for heads, dim in shapes.values()]
    reduced = _size("reduced", reduced, min(channels))
    reduced_per_head = _size("reduced_per_head", reduced_per_head, min(dim for _, dim in shapes.values()))
    chunks = token_chunks(texts, tokenizer, size, tokens)
    count = sum(chunk.numel() for chunk in chunks)
    if count < max(channels):
        raise CalibrationError(
            f"the texts have {count} tokens ({tokens} requested), and keys of {max(channels)} channels need at "
            "least as many; pass more text"
        )
    if "sgd" in solvers and count < SGD_BATCH:
        raise CalibrationError(f"the solver 'sgd' needs {SGD_BATCH} tokens, and the texts have {count}; pass more text")
    if count < 0.9 * tokens:
        warnings.warn(f"the texts end after {count:,} of {tokens:,} tokens; calibrated on those", stacklevel=3)
    digest = weights_hash(model)  # before the texts are read: not every model has one
    maps: dict[Solver, dict[str, dict[int, Projection]]] = {name: {"layers": {}, "heads": {}} for name in solvers}
    groups = _groups(list(shapes), max(channels), count if "sgd" in solvers else 0)
    with _bar("calibrating", count * len(groups), progress) as advance:
        for group in groups:
            gathered = _LayerStatistics(group, keep="sgd" in solvers)
            collect(model, chunks, gathered, window=size, done=advance)
            for name in solvers:
                for index in group:
                    maps[name]["layers"][index] = gathered.solve(index, name, reduced, per_head=False, seed=seed)
                    maps[name]["heads"][index] = gathered.solve(index, name, reduced_per_head, per_head=True, seed=seed)
    return {
        name: Calibration(
            layers=found["layers"], heads=found["heads"], reduced=reduced, reduced_per_head=reduced_per_head,
            solver=name, model_id=model_id or model_name(model), weights_sha256=digest, dtype=dtype_name(model),
            window=size, tokens=count,
        )
        for name, found in maps.items()
    }  # fmt: skip


def measure_recall(
    model: PreTrainedModel,
    calibrations: Sequence[Calibration],
    texts: Sequence[Tensor],
    *,
    top: int | None = None,
    queries: int = 128,
    initial: int | None = None,
    local: int | None = None,
    method: str | Method = "dca",
    window: int | None = None,
    progress: bool = True,
) -> RecallReport:
    """How many of the highest-scoring keys of long texts each calibration finds, layer by layer.

    The last tokens are the queries; the keys are those between the first ``initial`` and the ``local`` before the
    queries: the tokens that ESA chooses from. Recall is the mean over the texts.

    Args:
        calibrations: for this model, of one size and different solvers.
        texts: token ids ``[T]`` int64 each, all of one length, best such that no calibration was made from.
        top: how many keys; ``L / 4``, ESA's own number, unless given.
        queries: how many at the end of each text.
        initial, local: tokens that are kept anyway; ``L / 64`` and ``L / 2``, ESA's own numbers, unless given.
        method: what the model reads the texts under, which are longer than its window.
        window: the trained window; the model's own unless given.

    Raises:
        CalibrationError: a calibration belongs to another model, or a number or a text does not fit.
    """
    model = unwrap(model)
    if not calibrations:
        raise CalibrationError("there is no calibration to measure")
    sizes = {(one.reduced, one.reduced_per_head) for one in calibrations}
    if len(sizes) > 1 or len({one.solver for one in calibrations}) < len(calibrations):
        raise CalibrationError("compared calibrations must have one size and different solvers")
    size, shapes = _window_and_shapes(model, window)
    for one in calibrations:
        one.check_shapes(shapes, model_name(model))
    lengths = {int(ids.numel()) for ids in texts}
    if len(lengths) != 1:
        raise CalibrationError(f"recall requires texts of one length, not of {sorted(lengths)} tokens")
    length = lengths.pop()
    queries, top, first, last = recall_span(length, size, top=top, queries=queries, initial=initial, local=local)
    _check_weights(model, calibrations, shapes)
    found: dict[tuple[int, str], list[tuple[float, ...]]] = {}  # recall by layer, and by head

    def sink(layer: Layer, q: Tensor, k: Tensor) -> None:
        q, k = q[:, :, -queries:], k[:, :, first:last]
        for one in calibrations:
            rates = tuple(recall(q, k, maps[layer.index].to(q.device), top) for maps in (one.layers, one.heads))
            found.setdefault((layer.index, one.solver), []).append(rates)

    with _bar("measuring recall", length * len(texts), progress) as advance:
        for ids in texts:  # one by one: a row of this length is enough for the memory
            collect(model, [ids], sink, method=method, window=size, done=advance)
    rows = [
        RecallRow(index, solver, *(sum(rates) / len(rates) for rates in zip(*pairs, strict=True)))
        for (index, solver), pairs in found.items()
    ]
    (reduced, per_head) = sizes.pop()
    channels = min(heads * dim for heads, dim in shapes.values())
    return RecallReport(tuple(rows), top, last - first, queries * len(texts), reduced, per_head, channels)


def check_calibration(model: PreTrainedModel, calibration: Calibration) -> None:
    """Raise ``CalibrationError`` if a calibration belongs to another model: ``extend`` would, too.

    Hashing the weights reads all of them: about a second for each gigabyte.
    """
    model = unwrap(model)
    _, shapes = _window_and_shapes(model, None)
    calibration.check_shapes(shapes, model_name(model))
    _check_weights(model, [calibration], shapes)


def _check_weights(
    model: PreTrainedModel, calibrations: Sequence[Calibration], shapes: dict[int, tuple[int, int]]
) -> None:
    digest = weights_hash(model)
    for one in calibrations:
        one.check(weights_sha256=digest, shapes=shapes, dtype=dtype_name(model), model=model_name(model))


def recall_span(
    length: int,
    window: int,
    *,
    top: int | None = None,
    queries: int = 128,
    initial: int | None = None,
    local: int | None = None,
) -> tuple[int, int, int, int]:
    """The queries and the ``top`` of ``measure_recall``, and the first key and the one after the last.

    Raises:
        CalibrationError: a number is out of range, or a text of ``length`` tokens has too few keys.
    """
    queries = check_count("queries", queries)
    top = max(window // 4, 1) if top is None else check_count("top", top, what="keys")
    first = window // 64 if initial is None else check_count("initial", initial, least=0)
    local = window // 2 if local is None else check_count("local", local, least=0)
    last = length - queries - local
    if top > last - first:
        raise CalibrationError(
            f"{length} tokens leave {max(last - first, 0)} keys to choose the top {top} from, for {queries} "
            f"queries: the text must be at least {first + local + max(queries, 1) + top} tokens long"
        )
    return queries, top, first, last


class _LayerStatistics:
    """Some layers' statistics from one pass over a text: moments, and the samples if they are kept."""

    def __init__(self, indices: Sequence[int], keep: bool) -> None:
        self._keep = keep
        self._moments: dict[int, Moments] = {}
        self._samples: dict[int, list[tuple[Tensor, Tensor]]] = {index: [] for index in indices}

    def __call__(self, layer: Layer, q: Tensor, k: Tensor) -> None:
        if layer.index not in self._samples:
            return
        if layer.index not in self._moments:
            device = q.device if q.device.type in ("cpu", "cuda") else "cpu"  # others may have no fp64
            self._moments[layer.index] = Moments(layer.kv_heads, layer.key_dim, device)
        self._moments[layer.index].add(q, k)
        if self._keep:
            flat = flat_queries(q.float(), layer.kv_heads).flatten(0, 1), flat_keys(k.float()).flatten(0, 1)
            self._samples[layer.index].append(flat)

    def solve(self, index: int, solver: Solver, rank: int, *, per_head: bool, seed: int) -> Projection:
        moments = self._moments[index]
        if not moments.keys_differ:
            raise CalibrationError(f"all keys of layer {index} are equal in these texts: they repeat one token")
        if solver == "sgd":
            q, k = (torch.cat(parts) for parts in zip(*self._samples[index], strict=True))
            heads = moments.kv_heads if per_head else 1
            q, k = (x.unflatten(1, (heads, -1)).transpose(0, 1).contiguous() for x in (q, k))
            theta_q, theta_k = sgd(q, k, rank, seed=seed)
        else:
            c_q, c_k = moments.heads() if per_head else moments.layer()
            theta_q, theta_k = {"closed_form": closed_form, "pca": pca}[solver](c_q, c_k, rank)
        pair = (theta_q, theta_k) if per_head else (theta_q[0], theta_k[0])
        return Projection(*(x.cpu().contiguous() for x in pair))


def _groups(indices: list[int], channels: int, samples: int) -> list[list[int]]:
    """Layers whose moments, and ``samples`` queries and keys each, fit the budget together; at least one."""
    at_once = max(1, BUDGET // (16 * channels**2 + 8 * channels * samples))
    return [indices[first : first + at_once] for first in range(0, len(indices), at_once)]


def _window_and_shapes(model: PreTrainedModel, window: int | None) -> tuple[int, dict[int, tuple[int, int]]]:
    """The window in tokens, and key heads and their size for each layer that can be attached to."""
    if (reason := split_reason(model)) is not None:
        raise CalibrationError(
            f"{reason}, and a calibration is made from the queries and keys of all heads; make it in one process, save "
            "it, and pass its path to longspan.extend in every process"
        )
    if window is not None:
        window = check_count("window", window)
    attached = attachment_of(model)
    if attached is None:
        report, _, layers = examine(model, "full", window=window)
    else:
        report, layers = attached.report, attached.layers
    return window or report.window, shapes_of(layers)


def _size(name: str, value: int | None, channels: int) -> int:
    if value is None:
        return max(1, channels // 8)
    value = check_count(name, value, what="channels")
    if value > channels:
        raise CalibrationError(f"{name} must be 1 to {channels}, the number of channels, not {value}")
    return value


class _Rate(ProgressColumn):
    """Tokens a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} tokens/s")


@contextmanager
def _bar(title: str, total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task(title, total=total)
        yield lambda tokens: bar.update(task, advance=tokens)
