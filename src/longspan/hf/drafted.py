"""The changes to a model's ``generate`` and forward by which its answers are drafted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import GenerationMode

from longspan.errors import AttachError
from longspan.hf.cache import StoreLayer
from longspan.hf.drafting import Draft, DraftedAnswer, Drafting, check_draft
from longspan.hf.forward import NeverCopied
from longspan.hf.hooks import Attachment
from longspan.hf.steps import stepped_cache
from longspan.hf.stock import keeps_nothing

_TOKEN_BY_TOKEN = GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE


def drafting_of(attachment: Attachment, model: PreTrainedModel, draft: Draft | None) -> Drafting | None:
    """The drafting of a model's answers, or None without ``draft``.

    Raises:
        LongspanError: there is no such drafter. AttachError: the model's answers cannot be drafted.
    """
    check_draft(draft)
    if draft is None:
        return None
    layers = attachment.new_cache().layers
    own = next((n for n, x in enumerate(layers) if not isinstance(x, StoreLayer) and not keeps_nothing(x)), None)
    reason = None
    if not model.can_generate():
        reason = "it has no generate"
    elif own is not None:
        reason = f"layer {own} is attended by the model itself, which may not drop tokens again"
    elif attachment.report.ranks is not None:
        reason = "its heads are split over several processes, which would draft different lengths"
    elif model.device.type == "mps":
        reason = "transformers decodes one token too many there and drops it"
    if reason is not None:
        raise AttachError(f"answers of {type(model).__name__} cannot be drafted: {reason}; leave draft out")
    return Drafting(draft)


@contextmanager
def drafted(attachment: Attachment, answer: DraftedAnswer) -> Iterator[None]:
    """This thread's forwards of the model are those of ``answer`` for the length of a ``with`` block."""
    before, attachment.thread.answer = attachment.thread.answer, answer
    try:
        yield
    finally:
        attachment.thread.answer = before


class _Drafted(NeverCopied):
    """In place of a method of a model, ``stock``."""

    def __init__(self, model: PreTrainedModel, attachment: Attachment, drafting: Drafting, name: str) -> None:
        stock: Callable[..., Any] = getattr(model, name)
        update_wrapper(cast(Any, self), stock)  # transformers looks at what it takes; first, since it copies attributes
        self.replaced = vars(model).get(name)  # an instance's own attribute, as accelerate sets
        self._stock = stock
        self._config, self._attachment, self._drafting = model.config, attachment, drafting


class _Generate(_Drafted):
    """In place of ``generate``: an answer begins and ends."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        answer = DraftedAnswer(self._drafting)
        with drafted(self._attachment, answer):
            try:
                return self._stock(*args, **kwargs)
            finally:
                answer.end()
                self._attachment.thread.drafts = answer.drafts


class _CacheMade(_Drafted):
    """In place of ``_prepare_cache_for_generation``, which is given the generation's config and mode."""

    def __call__(self, config: Any, kwargs: dict[str, Any], mode: GenerationMode, *args: Any, **more: Any) -> Any:
        answer = self._attachment.thread.answer
        if answer is not None:
            if mode in _TOKEN_BY_TOKEN:
                ends = getattr(config, "_eos_token_tensor", None)
                answer.follow(config.max_length, frozenset() if ends is None else frozenset(ends.flatten().tolist()))
            else:
                self._drafting.leave_alone(f"generate by {mode.value.replace('_', ' ')}")
        return self._stock(config, kwargs, mode, *args, **more)


class _TextSeen(_Drafted):
    """In place of ``prepare_inputs_for_generation``, which is given the text so far before each forward."""

    def __call__(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = self._attachment.thread.answer
        if answer is not None:
            answer.tokens = input_ids
        return self._stock(input_ids, *args, **kwargs)


class _Verifying(_Drafted):
    """In place of ``forward``: a step may have been computed already, or computes more."""

    def __init__(self, model: PreTrainedModel, attachment: Attachment, drafting: Drafting, name: str) -> None:
        super().__init__(model, attachment, drafting, name)
        self._names = list(inspect.signature(self._stock).parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        answer, attachment = self._attachment.thread.answer, self._attachment
        if answer is None:
            return self._stock(*args, **kwargs)
        arguments = dict(zip(self._names, args, strict=False)) | kwargs
        cache = stepped_cache(arguments, self._config)
        if cache is not None and not answer.owns(cache):
            return self._stock(*args, **kwargs)
        if cache is None or attachment.observer is not None or attachment.attender.observer is not None:
            answer.settle()
            return self._stock(*args, **kwargs)
        given = answer.given(arguments["input_ids"])
        if given is not None:
            attachment.stood_in()
            return given
        return answer.step(cache, self._stock, arguments, keeps="logits_to_keep" in self._names)


_DRAFTED: dict[str, type[_Drafted]] = {
    "generate": _Generate,
    "_prepare_cache_for_generation": _CacheMade,
    "prepare_inputs_for_generation": _TextSeen,
    "forward": _Verifying,
}


def shadow_drafted(model: PreTrainedModel, attachment: Attachment, drafting: Drafting) -> None:
    """Let the model's answers be drafted; after ``longspan.hf.generation.shadow``."""
    for name, kind in _DRAFTED.items():
        setattr(model, name, kind(model, attachment, drafting, name))


def unshadow_drafted(model: PreTrainedModel) -> None:
    """Bring back what ``shadow_drafted`` replaced."""
    for name in _DRAFTED:
        own = vars(model).get(name)
        if isinstance(own, _Drafted):
            vars(model).pop(name)
            if own.replaced is not None:
                setattr(model, name, own.replaced)
