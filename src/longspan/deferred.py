"""torch, imported at the first use of one of its attributes.

``longspan methods`` and shell completion describe methods, selections and position maps without tensors, and importing
torch takes longer than all of their work. Modules that these commands import take torch from here, and import its types
only for annotations. Code that computes with tensors has already imported torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        """A stand-in with the attributes of torch."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("torch"), name)
            vars(self)[name] = value  # later accesses bypass __getattr__
            return value

    torch = _Torch()
