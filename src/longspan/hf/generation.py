"""The changes to ``generate``: attributes of an extended model that shadow its class's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor
from transformers import MaxLengthCriteria, PreTrainedModel

from longspan.errors import CacheError, LongspanError
from longspan.hf.argument import CACHE_ARGUMENT, given_cache, named_here
from longspan.hf.cache import LongspanCache
from longspan.hf.forward import NeverCopied
from longspan.hf.hooks import Attachment


class _Shadow(NeverCopied):
    """In place of a method of a model, ``stock``."""

    def __init__(self, attachment: Attachment, stock: Callable[..., Any]) -> None:
        self._attachment, self._stock = attachment, stock


class _EitherName(_Shadow):
    """In place of ``_prepare_generation_config``, which is given what ``generate`` was, before that is checked."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stock(*args, **named_here(kwargs))


class _OurCache(_Shadow):
    """In place of ``_prepare_cache_for_generation``."""

    def __call__(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        passed = model_kwargs.get(CACHE_ARGUMENT)
        if passed is not None:
            self._attachment.check(passed)
        elif generation_config.cache_implementation not in (None, "dynamic"):
            raise CacheError(
                f"cache_implementation={generation_config.cache_implementation!r} is not available on an extended "
                "model, which keeps longspan's own cache; leave it out"
            )
        result = self._stock(generation_config, model_kwargs, *args, **kwargs)
        if passed is None and model_kwargs.get(CACHE_ARGUMENT) is not None:
            cache = model_kwargs[CACHE_ARGUMENT] = self._attachment.new_cache()
            if getattr(generation_config, "is_assistant", False):
                cache.activate_past_recording()
        return result


class _Guesses(_Shadow):
    """In place of ``_get_candidate_generator``: the cache is told how many tokens of its next forward are guesses."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        generator, cache = self._stock(*args, **kwargs), given_cache(kwargs["model_kwargs"])
        if isinstance(cache, LongspanCache):
            guess = generator.get_candidates

            def get_candidates(input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
                found = guess(input_ids, *args, **kwargs)
                cache.calls.guesses = found[0].shape[1] - input_ids.shape[1]
                return found

            generator.get_candidates = get_candidates
        return generator


class _LongPrompts(_Shadow):
    """In place of ``_prepare_generated_length``."""

    def __call__(self, generation_config: Any, has_default_max_length: bool, *args: Any, **kwargs: Any) -> Any:
        longest = generation_config.max_length
        done = self._stock(generation_config, has_default_max_length, *args, **kwargs)
        if has_default_max_length and done.max_new_tokens is None:
            # transformers cuts the default length at max_position_embeddings, which is what is being extended.
            done.max_length = max(done.max_length, longest + kwargs["input_ids_length"])
        return done


class _OwnReach(_Shadow):
    """In place of ``_get_stopping_criteria``, where transformers warns of texts beyond ``max_position_embeddings``."""

    def __call__(self, generation_config: Any, stopping_criteria: Any = None, *args: Any, **kwargs: Any) -> Any:
        criteria = self._stock(generation_config, stopping_criteria, *args, **kwargs)
        method, window = self._attachment.attender.method, self._attachment.attender.window
        longest = method.longest(window)
        if longest is None and not (method.extends or method.angles.dynamic):
            return criteria  # the stock model on our cache, of which the warning is true
        for one in criteria:
            if isinstance(one, MaxLengthCriteria) and one not in (stopping_criteria or ()):
                one.max_position_embeddings = longest
        return criteria


class _NoPages(_Shadow):
    """In place of what begins continuous batching, which would set the model to another attention by itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise LongspanError(
            "continuous batching uses its own attention and paged cache instead of longspan's; call "
            "generate, or longspan.restore(model) first"
        )


_SHADOWS: dict[str, type[_Shadow]] = {
    "_prepare_generation_config": _EitherName,
    "_prepare_cache_for_generation": _OurCache,
    "_get_candidate_generator": _Guesses,
    "_prepare_generated_length": _LongPrompts,
    "_get_stopping_criteria": _OwnReach,
    "init_continuous_batching": _NoPages,
}


def shadow(model: PreTrainedModel, attachment: Attachment) -> None:
    """Let ``generate`` use longspan's cache and take long prompts, if the model has it."""
    for name, kind in _SHADOWS.items():
        if hasattr(model, name):
            setattr(model, name, kind(attachment, getattr(model, name)))


def unshadow(model: PreTrainedModel) -> None:
    """Bring the class's own methods to light again."""
    for name in _SHADOWS:
        vars(model).pop(name, None)
