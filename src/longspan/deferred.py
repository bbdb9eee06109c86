"""torch and transformers, each imported at the first use of one of its attributes.

``longspan methods`` and shell completion describe methods, selections and position maps without tensors, and importing
torch takes longer than all of their work. Modules that these commands import take torch from here, and import its types
only for annotations. Code that computes with tensors has already imported torch. The bundled model's folder and text,
which the command line's help names, need neither, and what loads the model takes both from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
    import transformers as transformers
else:

    class _Deferred:
        """A stand-in with the attributes of a module."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._module), name)
            vars(self)[name] = value  # later accesses bypass __getattr__
            return value

    torch, transformers = _Deferred("torch"), _Deferred("transformers")
