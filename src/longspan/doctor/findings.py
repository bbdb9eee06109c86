"""The findings about a machine and a model, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from longspan.doctor.estimate import Estimate
from longspan.doctor.machine import Machine
from longspan.doctor.measuring import Run
from longspan.doctor.memory import Fit, Needs
from longspan.doctor.untouched import Untouched
from longspan.hf import Report
from longspan.memory import Tier

VERSION = 3
"""Of what ``to_dict`` gives; a field that goes or changes its meaning makes a new one."""


@dataclass(frozen=True)
class ModelFacts:
    """The model.

    Attributes:
        model, family: its class, and the type in its config.
        dtype, device: what it computes in, and on. weights: their bytes. form: of packed ones, else empty.
        window, window_source: tokens that it was trained on, and the source of it; None if it cannot be extended.
        attached, stock: layers that a method runs in, and those that stay as they are.
        dual_chunks: the config's ``dual_chunk_attention_config``. rope_scaling: the config's scaled RoPE.
        refusal: why it cannot be extended; None if it can.
    """

    model: str
    family: str
    dtype: str
    device: str
    weights: int
    form: str
    window: int | None
    window_source: str | None
    attached: tuple[int, ...]
    stock: tuple[int, ...]
    dual_chunks: dict[str, Any] | None
    rope_scaling: dict[str, Any] | None
    refusal: str | None


@dataclass(frozen=True)
class Advice:
    """The recommendation.

    Attributes:
        method: as the command line takes it.
        kv_tier: where keys and values go; None if they fit nowhere, the method is set for a shorter text, or the time
            could not be told: then nothing is recommended.
        why: in a sentence.
        commands: to copy; none without a tier.
    """

    method: str
    kv_tier: Tier | None
    why: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """Facts found of a machine, of a model, and of both together at a length.

    Attributes:
        machine: always there.
        model_facts: the model, if one was given. All that follows is None unless it can be extended.
        length: tokens of prompt and answer.
        report: the method, as ``longspan.inspect`` reports it.
        needs, tiers: bytes that it takes, and each tier held against what is free.
        run: what was measured, on the tier that holds the text; None if nothing was.
        estimate: the times at the length, as intervals; None if there is none that was checked.
        no_estimate: why not.
        short_prompts: whether prompts inside the window are left alone.
        advice: what to do.
    """

    machine: Machine
    model_facts: ModelFacts | None = None
    length: int | None = None
    report: Report | None = None
    needs: Needs | None = None
    tiers: tuple[Fit, ...] = ()
    run: Run | None = None
    estimate: Estimate | None = None
    no_estimate: str | None = None
    short_prompts: Untouched | None = None
    advice: Advice | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way: the model can be extended, the text fits, and the method is set for it.

        A time that cannot be told is in the way, too, and a short prompt whose logits are not what the method states.
        """
        if self.model_facts is None:
            return True
        short = self.short_prompts
        return (
            self.advice is not None
            and self.advice.kv_tier is not None
            and short is not None
            and short.holds is not False
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON; the keys are always the same."""
        return {
            "version": VERSION,
            "ok": self.ok,
            "machine": asdict(self.machine),
            "model": _plain(self.model_facts),
            "length": self.length,
            "report": None if self.report is None else self.report.to_dict(),
            "needs": _plain(self.needs),
            "tiers": [asdict(fit) for fit in self.tiers],
            "run": _plain(self.run),
            "estimate": _plain(self.estimate),
            "no_estimate": self.no_estimate,
            "short_prompts": _plain(self.short_prompts),
            "recommendation": _plain(self.advice),
        }


def _plain(value: Any) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
