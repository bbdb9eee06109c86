"""Counts of ESA's tables: keys that the reduced scores find, keys scored and attended to, bytes of the index."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from longspan.attend import Choice
from longspan.calibration import Calibration
from longspan.hf import calibrate, measure_recall
from longspan_eval.analysis import record
from longspan_eval.generate import prefill
from longspan_eval.measure import Keys, Measure
from longspan_eval.reproduce.operations import Shape, counted_ratio
from longspan_eval.reproduce.texts import Text
from longspan_eval.sample import Sample
from longspan_eval.session import Session


@dataclass(frozen=True)
class Recalled(Measure):
    """How many of the best-scored keys the reduced scores find for the last ``queries`` of a text, layer by layer.

    Attributes:
        text: of which ``length`` tokens are read from token ``seed`` on, none of those that the principal components
            are made of (``components_from``).
        initial, local: tokens that ESA keeps anyway, and does not choose from.
        sha256: of the file ``calibration``.
    """

    text: Text = field(compare=False, repr=False, kw_only=True)
    queries: int = field(kw_only=True)
    top: int = field(kw_only=True)
    initial: int = field(kw_only=True)
    local: int = field(kw_only=True)
    calibration: Path = field(kw_only=True)
    sha256: str = field(kw_only=True)

    def depends_on(self, keys: Keys) -> dict[str, Any]:
        span = {"begin": self.seed, "length": self.length, "queries": self.queries, "top": self.top}
        span |= {"initial": self.initial, "local": self.local}
        return {"kind": self.name, "measure": 3, "text": self.text.sha256, "calibration": self.sha256, **span}

    def run(self, session: Session) -> Sample:
        session.detach()
        ids = torch.tensor(self.text.ids[self.seed : self.seed + self.length])
        own = Calibration.load(self.calibration)
        both = {"": own, "pca ": _components(session, self.text, own.reduced)}
        figures: dict[str, float] = {}
        for prefix, one in both.items():
            report = measure_recall(
                session.model, [one], [ids], top=self.top, queries=self.queries, initial=self.initial,
                local=self.local, window=session.window, progress=False,
            )  # fmt: skip
            figures |= {f"{prefix}layer {row.index}": row.layer for row in report.rows}
            figures |= {f"{prefix}mean": report.mean("layer", one.solver), "keys": float(report.keys)}
        return self.sample(tokens=self.length, figures=figures)


@dataclass(frozen=True)
class Counted(Measure):
    """Counted when one token is decoded: keys scored and attended to, and bytes of the index over keys and values.

    Attributes:
        text: whose first ``length`` tokens are read.
        reduced: numbers that the score of a key takes, for the ratio of operations; None: scores are in full.
    """

    text: Text = field(compare=False, repr=False, kw_only=True)
    reduced: int | None = field(kw_only=True)

    def depends_on(self, keys: Keys) -> dict[str, Any]:
        sizes = {"length": self.length, "reduced": self.reduced}
        return {"kind": self.name, **keys.method(self.spec, self.length), "text": self.text.sha256, **sizes}

    @torch.inference_mode()
    def run(self, session: Session) -> Sample:
        session.attach(self.spec, self.length)
        ids = torch.tensor([list(self.text.ids[: self.length])], device=session.device)
        with record(session.model) as trace:
            _, cache = prefill(session.model, ids[:, :-1])
            prefill(session.model, ids[:, -1:], cache=cache)
            choices = trace.at(self.length - 1)
        attended = [one.units.shape[-1] * one.size + _tokens(one) for one in choices]
        # A recording has the scores of what is kept anyway too; those that decide are of what lies between.
        scored = [0 if one.scores is None else self.length - _tokens(one) for one in choices]
        stores = [layer.store for layer in cache.layers if hasattr(layer, "store")]
        index = sum(store.index.nbytes for store in stores if store.index is not None)
        # Allocated, and both grow alike; of the rotations of the keys one counts, as a cache without a method has it.
        streams = [len(store.keys) + 1 for store in stores]
        plain = sum(
            2 * (store.nbytes - (store.index.nbytes if store.index is not None else 0)) / count
            for store, count in zip(stores, streams, strict=True)
        )
        return self.sample(
            tokens=self.length,
            figures={
                "attended": fmean(attended),
                "scored": fmean(scored),
                "ratio": counted_ratio(
                    self.length, fmean(scored), fmean(attended), Shape.of(session.model), self.reduced
                ),
                "overhead": index / plain if index else math.nan,
            },
        )


COMPONENTS = 50_000  # tokens that a calibration is made of, as in the paper


def components_from(text: Text) -> int:
    """The token of a text from which on the principal components are made of it: at most half, and at its end."""
    return len(text.ids) - min(COMPONENTS, len(text.ids) // 2)


def _components(session: Session, text: Text, size: int) -> Calibration:
    """The principal components of a model's keys, as many as a calibration has numbers, made once for a session."""
    components = session.shared.get("components")
    if components is None:
        ids = text.ids[components_from(text) :]
        components = calibrate(
            session.model, [torch.tensor(ids)], reduced=size, solver="pca", tokens=len(ids), window=session.window,
            progress=False,
        )  # fmt: skip
        session.shared["components"] = components
    assert isinstance(components, Calibration)
    return components


def _tokens(choice: Choice) -> int:
    """How many tokens are kept whatever is chosen."""
    return sum(stop - first for first, stop in choice.kept)
