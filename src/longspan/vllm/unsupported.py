"""The behaviour in an unknown vLLM: longspan raises an error if it is enabled, and changes nothing otherwise."""

from __future__ import annotations

from functools import wraps
from typing import Any

from longspan.errors import AttachError
from longspan.vllm.settings import asked


def register(found: str, supported: str) -> None:
    """Let every engine that asks for longspan fail with one line."""
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config
    if getattr(original, "longspan", False):
        return

    @wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = original(self, *args, **kwargs)
        model = getattr(config, "model_config", None)
        if asked(getattr(config, "additional_config", None), getattr(model, "hf_text_config", None)) is not None:
            raise AttachError(
                f"longspan supports vLLM {supported}, and this is {found}; install a supported release, or start vLLM "
                "with --additional-config '{\"longspan\": null}'"
            )
        return config

    create_engine_config.longspan = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = create_engine_config
