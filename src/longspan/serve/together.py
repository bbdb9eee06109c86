"""One forward for the next tokens of all answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.documents.contents import attached
from longspan.hf.argument import CACHE_ARGUMENT
from longspan.hf.joined import JoinedCache
from longspan.hf.logits import last_logits
from longspan.serve.engine import Job, log
from longspan.serve.generation import Generation


class NextTokens:
    """Computes what the next steps of jobs take, ahead of them, in one forward; see ``Engine``.

    Args:
        model: extended.

    Attributes:
        unjoinable: the reason why each computes its own, or None.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._last_logits = model, last_logits(model, 1)
        self.unjoinable = attached(model).unjoinable()

    @torch.inference_mode()
    def __call__(self, jobs: Sequence[Job]) -> None:
        answers = [job for job in jobs if isinstance(job, Generation)]
        together = [one for one in answers if one.next_id is not None]
        if len(together) < 2 or self.unjoinable is not None:
            together = []
        joined = _joined(answers, together)
        if not together:
            return
        began = time.perf_counter()
        try:
            logits = self._forward(joined or JoinedCache([one.cache for one in together]), together)
        except Exception as error:
            log.warning(
                "the next tokens of %d answers could not be computed together, so each is by itself", len(together),
                exc_info=error,
            )  # fmt: skip
            for one in together:
                one.go_back(error)
            return
        seconds = time.perf_counter() - began
        for one, own in zip(together, logits, strict=True):
            one.take(own, seconds)

    def _forward(self, joined: JoinedCache, answers: Sequence[Generation]) -> Tensor:
        """Logits ``[B, V]`` of the next token of each answer."""
        answers[0].joined = joined
        ids = torch.tensor([[one.next_id] for one in answers], device=self._model.device)
        out = self._model(input_ids=ids, use_cache=True, **{**self._last_logits, CACHE_ARGUMENT: joined})
        logits: Tensor = out.logits[:, -1]
        logits[:1, :1].tolist()  # waits for a device: the time is that of all answers, and not of the one sampled first
        return logits


def _joined(answers: Sequence[Generation], together: Sequence[Generation]) -> JoinedCache | None:
    """The joined cache of the last turn, if it is of these answers; else none keeps it, nor the caches in it."""
    found = None
    for one in answers:
        if one.joined is not None and together and one is together[0]:
            members = one.joined.members
            if len(members) == len(together) and all(a is b.cache for a, b in zip(members, together, strict=True)):
                found = one.joined
        one.joined = None
    return found
