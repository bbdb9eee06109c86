"""What ``generate`` is changed by: attributes of an extended model that shadow its class's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from transformers import Cache, MaxLengthCriteria, PreTrainedModel

from longspan.attend import Attender
from longspan.errors import CacheError, LongspanError
from longspan.hf.running import NeverCopied
from longspan.methods import Full


class Caching(Protocol):
    """What ``generate`` asks of what is attached; see ``longspan.hf.hooks.Attachment``."""

    def check(self, cache: Any) -> None: ...

    def new_cache(self) -> Cache: ...
    @property
    def attender(self) -> Attender: ...


class _OurCache(NeverCopied):
    """In place of ``_prepare_cache_for_generation``."""

    def __init__(self, attachment: Caching, stock: Callable[..., Any]) -> None:
        self._attachment, self._stock = attachment, stock

    def __call__(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if model_kwargs.get("past_key_values") is not None:
            self._attachment.check(model_kwargs["past_key_values"])
        elif generation_config.cache_implementation not in (None, "dynamic"):
            raise CacheError(
                f"cache_implementation={generation_config.cache_implementation!r} is not available on an extended "
                "model, which keeps longspan's own cache; leave it out"
            )
        new_cache = model_kwargs.get("past_key_values") is None
        result = self._stock(generation_config, model_kwargs, *args, **kwargs)
        if new_cache and model_kwargs.get("past_key_values") is not None:
            model_kwargs["past_key_values"] = self._attachment.new_cache()
            if getattr(generation_config, "is_assistant", False):
                model_kwargs["past_key_values"].activate_past_recording()
        return result


class _LongPrompts(NeverCopied):
    """In place of ``_prepare_generated_length``."""

    def __init__(self, stock: Callable[..., Any]) -> None:
        self._stock = stock

    def __call__(self, generation_config: Any, has_default_max_length: bool, *args: Any, **kwargs: Any) -> Any:
        longest = generation_config.max_length
        done = self._stock(generation_config, has_default_max_length, *args, **kwargs)
        if has_default_max_length and done.max_new_tokens is None:
            # transformers cuts the default length at max_position_embeddings, which is what is being extended.
            done.max_length = max(done.max_length, longest + kwargs["input_ids_length"])
        return done


class _OwnReach(NeverCopied):
    """In place of ``_get_stopping_criteria``, where transformers warns of texts beyond ``max_position_embeddings``."""

    def __init__(self, attachment: Caching, stock: Callable[..., Any]) -> None:
        self._attachment, self._stock = attachment, stock

    def __call__(self, generation_config: Any, stopping_criteria: Any = None, *args: Any, **kwargs: Any) -> Any:
        criteria = self._stock(generation_config, stopping_criteria, *args, **kwargs)
        method, window = self._attachment.attender.method, self._attachment.attender.window
        longest = method.longest(window)
        if longest is None and isinstance(method, Full):
            return criteria  # the stock model on our cache, of which the warning is true
        for one in criteria:
            if isinstance(one, MaxLengthCriteria) and one not in (stopping_criteria or ()):
                one.max_position_embeddings = longest
        return criteria


class _NoPages(NeverCopied):
    """In place of what begins continuous batching, which would set the model to another attention by itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise LongspanError(
            "continuous batching uses its own attention and paged cache instead of longspan's; call "
            "generate, or longspan.restore(model) first"
        )


_SHADOWED = (
    "_prepare_cache_for_generation", "_prepare_generated_length", "_get_stopping_criteria", "init_continuous_batching",
)  # fmt: skip


def shadow(model: PreTrainedModel, attachment: Caching) -> None:
    """Let ``generate`` use longspan's cache and take long prompts."""
    if not hasattr(model, "_prepare_cache_for_generation"):
        return
    model._prepare_cache_for_generation = _OurCache(attachment, model._prepare_cache_for_generation)
    model._prepare_generated_length = _LongPrompts(model._prepare_generated_length)
    model._get_stopping_criteria = _OwnReach(attachment, model._get_stopping_criteria)
    if hasattr(model, "init_continuous_batching"):
        model.init_continuous_batching = _NoPages()


def unshadow(model: PreTrainedModel) -> None:
    """Bring the class's own methods to light again."""
    for name in _SHADOWED:
        vars(model).pop(name, None)
