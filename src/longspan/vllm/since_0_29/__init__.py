"""vLLM 0.29, 0.32 and 0.33: three functions of vLLM, which do what they did unless longspan is asked for."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from longspan.errors import AttachError
from longspan.version import __version__
from longspan.vllm.settings import DUAL, asked

_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_LOADERS = "vllm.model_executor.model_loader"
_log = logging.getLogger("vllm.longspan")  # vLLM prints what loggers below its own are told


def register() -> None:
    """Wrap what reads a model's config, what builds a model, and what names compiled code; once in a process."""
    import vllm.model_executor.model_loader.base_loader as base
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

    if getattr(base.initialize_model, "longspan", False):
        return
    EngineArgs.create_model_config = _with_long_texts(EngineArgs.create_model_config)
    VllmConfig.compute_hash = _with_longspan(VllmConfig.compute_hash)
    original = base.initialize_model
    attaching = _attaching(original)
    for name, module in list(sys.modules.items()):
        if name.startswith(_LOADERS) and getattr(module, "initialize_model", None) is original:
            module.initialize_model = attaching  # type: ignore[attr-defined]


def _with_long_texts(original: Any) -> Any:
    """``max_model_len`` beyond the window needs no leave of its own if longspan is asked for."""

    @wraps(original)
    def create_model_config(self: Any) -> Any:
        by_user = asked(self.additional_config) is not None
        try:
            with _long_texts(by_user):
                config = original(self)
        except ValueError:
            if by_user:
                raise
            # Perhaps a text beyond the window, of a model whose own config asks for longspan, which is not read yet.
            config = _read_for_long_texts(original, self)
            if config is None or asked(self.additional_config, config.hf_text_config) is None:
                raise
        built_elsewhere = self.load_format in ("tensorizer", "ipc_cache")  # the second builds it without its angles
        if built_elsewhere and asked(self.additional_config, config.hf_text_config) is not None:
            raise AttachError(
                f"longspan in vLLM: models of load_format {self.load_format} are built without it; use another"
            )
        return config

    return create_model_config


def _read_for_long_texts(original: Any, arguments: Any) -> Any:
    """A model's config, with long texts allowed; None if it is refused all the same."""
    try:
        with _long_texts(True):
            return original(arguments)
    except ValueError:
        return None


@contextmanager
def _long_texts(allowed: bool) -> Iterator[None]:
    before = os.environ.get(_LONG)
    if allowed:
        os.environ[_LONG] = "1"
    try:
        yield
    finally:
        if before is not None:
            os.environ[_LONG] = before
        elif allowed:
            del os.environ[_LONG]


def _with_longspan(original: Any) -> Any:
    """Code that vLLM compiled without longspan, or with another version of it, is not taken for a model with it."""

    @wraps(original)
    def compute_hash(self: Any, *args: Any, **kwargs: Any) -> str:
        found = str(original(self, *args, **kwargs))
        settings = asked(self.additional_config, getattr(self.model_config, "hf_text_config", None))
        if settings is None:
            return found
        return hashlib.sha256(f"{found} longspan {__version__} {settings}".encode()).hexdigest()[: len(found)]

    return compute_hash


def _attaching(original: Any) -> Any:
    """A model comes with longspan's attention if that is asked for."""

    @wraps(original)
    def initialize_model(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        model_config = kwargs.get("model_config") or vllm_config.model_config
        settings = asked(vllm_config.additional_config, model_config.hf_text_config)
        if settings is None:
            return original(vllm_config, *args, **kwargs)
        from longspan.vllm.since_0_29.model import attach

        with _plain_rotation(model_config):
            model = original(vllm_config, *args, **kwargs)
        report = attach(model, vllm_config, model_config, settings)
        if vllm_config.parallel_config.rank == 0:
            _log.info("longspan is attached.\n%s", report)
        return model

    initialize_model.longspan = True  # type: ignore[attr-defined]
    return initialize_model


@contextmanager
def _plain_rotation(model_config: Any) -> Iterator[None]:
    """Models with dual chunks build the rotation and the attention of any other, since vLLM has none for these."""
    configs = [one for one in (model_config.hf_config, model_config.hf_text_config) if getattr(one, DUAL, None)]
    stated = [getattr(one, DUAL) for one in configs]
    for one in configs:
        setattr(one, DUAL, None)
    try:
        yield
    finally:
        for one, value in zip(configs, stated, strict=True):
            setattr(one, DUAL, value)
