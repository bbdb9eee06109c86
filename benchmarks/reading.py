"""One reading of a text by a real model: the loss of its end, and what was planted in it, asked for one by one."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from longspan.hf.argument import CACHE_ARGUMENT
from longspan_eval.generate import decode
from longspan_eval.measure import Keys, Measure
from longspan_eval.perplexity import sliced_losses
from longspan_eval.sample import Sample
from longspan_eval.session import Session
from longspan_eval.tasks.fragments import piece
from planted import ROOM, TARGETS, Kind, Texts, says

VERSION = 2
NEW_TOKENS = 12


@dataclass(frozen=True)
class Reading(Measure):
    """A text, read once under a method; each answer goes on from a copy of what was read.

    Attributes:
        kind: of the text, whose number is ``seed``.
        window: the window that is declared.
        cut: read no more of the text than what fits into the window, its end.
        texts: what the text is made of.
    """

    kind: Kind = field(kw_only=True)
    window: int = field(kw_only=True)
    cut: bool = field(default=False, kw_only=True)
    texts: Texts = field(compare=False, repr=False, kw_only=True)

    @property
    def name(self) -> str:
        return self.kind

    def depends_on(self, keys: Keys) -> dict[str, Any]:
        return {
            "task": self.kind,
            "version": VERSION,
            "length": self.length,
            "declared": self.window,
            "cut": self.cut,
            **keys.method(self.spec, self.length, self.window),
            "seed": self.seed,
        }

    @torch.inference_mode()
    def run(self, session: Session) -> Sample:
        text = self.texts.planted(self.kind, self.seed, self.length)
        ids = torch.tensor([text.input_ids[ROOM - self.window :] if self.cut else text.input_ids])
        scored = () if self.cut else text.scored
        session.attach(self.spec, self.length, window=self.window)
        began, began_cpu = time.perf_counter(), time.process_time()
        out = session.model(ids, use_cache=True, logits_to_keep=TARGETS + 1 if scored else 1)
        losses = sliced_losses(out.logits[0], ids[0], scored)
        if not all(map(math.isfinite, losses)):
            raise ValueError("a loss is not finite")
        read_cpu = time.process_time() - began_cpu
        cache = getattr(out, CACHE_ARGUMENT)
        del out
        said = [self._ask(session, piece(session.tokenizer, one.question), cache, one.value) for one in text.asked]
        right = [float(says(one, asked.value)) for one, asked in zip(said, text.asked, strict=True)]
        return self.sample(
            answer=" | ".join(one.value for one in text.asked),
            prediction=" | ".join(" ".join(one.split()) for one in said),
            correct=math.fsum(right) / len(right),
            loss=math.fsum(losses) / len(losses) if losses else math.nan,
            scored=len(losses),
            seconds=time.perf_counter() - began,
            tokens=ids.shape[1],
            filler=text.source,
            figures={
                "declared": float(self.window),
                "cut": float(self.cut),
                "asked": float(len(right)),
                "read_cpu": round(read_cpu, 2),
                "asked_cpu": round(time.process_time() - began_cpu - read_cpu, 2),
                **{f"found{n}": one for n, one in enumerate(right)},
            },
        )

    def _ask(self, session: Session, ids: list[int], cache: Any, value: str) -> str:
        """What is said to a question, up to the end of its first sentence, or to the value."""
        model, own = session.model, copy.deepcopy(cache)
        out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1, **{CACHE_ARGUMENT: own})
        tokens: list[int] = []
        text = ""
        for token in decode(model, out.logits, own, NEW_TOKENS if value.isdigit() else 8):
            tokens.append(token)
            text = session.tokenizer.decode(tokens, skip_special_tokens=True)
            # A number may go on with the next token, which a word does not while it is the value.
            if "." in text or "\n" in text.lstrip() or (value.isalpha() and says(text, value)):
                break
        return text
