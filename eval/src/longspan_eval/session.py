"""A model under measurement: what is attached to it, and anything that can be measured on it as a sample."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from longspan.bundled import load_bundled
from longspan.errors import out_of_memory
from longspan.hf import restore
from longspan.memory import KVTier
from longspan_eval.sample import Sample
from longspan_eval.spec import MethodSpec


class Measurable(Protocol):
    """A measure, as a session sees it: it runs on the session, or has a sample that says why it did not."""

    def run(self, session: Session) -> Sample: ...

    def failed(self, reason: str) -> Sample: ...


class Session:
    """Measures one thing after the other on one model, attaching a method when it changes.

    Args:
        window: the trained window in tokens, if the config is not right about it.
        kv_tier: where extended models keep keys and values, unless a measure says so itself.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, *, window: int | None = None, kv_tier: KVTier = "device"
    ) -> None:
        self.model, self.tokenizer, self.window, self.kv_tier = model, tokenizer, window, kv_tier
        self.shared: dict[str, object] = {}  # what measures of one kind share, such as a calibration made for them
        self._attached: tuple[Any, ...] | None = None
        self._stock_attention: str | None = None  # transformers' own, while another one is set

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def attach(
        self,
        spec: MethodSpec,
        length: int,
        *,
        window: int | None = None,
        implementation: str | None = None,
        kv_tier: KVTier | None = None,
    ) -> None:
        """Make the model run a method for prompts of ``length`` tokens, unless that is what it runs.

        Args:
            window: the trained window, if a table takes another than the model's.
            implementation: transformers' attention for the stock model, such as ``"eager"``.
            kv_tier: where an extended model keeps keys and values; the session's unless given.
        """
        kv_tier = self.kv_tier if kv_tier is None else kv_tier
        wanted = (spec, length, window, implementation, kv_tier)
        if self._attached == wanted:
            return
        self.detach()
        spec.attach(self.model, length, window or self.window, kv_tier=kv_tier)
        if implementation is not None:
            self._stock_attention = self.model.config._attn_implementation
            self.model.set_attn_implementation(implementation)
        self._attached = wanted

    def detach(self) -> None:
        """Leave the model as transformers has it."""
        restore(self.model)
        if self._stock_attention is not None:
            self.model.set_attn_implementation(self._stock_attention)
        self._attached = self._stock_attention = None

    def measure(self, measure: Measurable) -> Sample:
        """The sample of a measure; what goes wrong is a sample with an ``error``, so that a night's run goes on."""
        try:
            sample = measure.run(self)
            return replace(sample, kv_tier=sample.kv_tier or self.kv_tier, threads=torch.get_num_threads())
        except Exception as error:
            self.detach()
            if out_of_memory(error):
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()  # what the failure leaves in fragments would fail the next one too
                return measure.failed("out of memory")
            # A rule that parameters break says enough by itself; anything else is a mistake, and says where.
            if isinstance(error, ValueError):
                return measure.failed(str(error))
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            return measure.failed(f"{type(error).__name__}: {error} ({where})")


def bundled(**options: Any) -> Session:
    """A session of the bundled model; ``options``: of ``load_bundled``."""
    return Session(*load_bundled(**options))
