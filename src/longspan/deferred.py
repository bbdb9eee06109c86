"""torch, imported when something of it is first used.

Methods, their selections and position maps are described without any tensor (``longspan methods``, completion in a
shell), and importing torch takes longer than all of that. Modules that they are made of take torch from here, and its
types for annotations alone. Whoever computes with tensors has imported torch already.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        """Has what torch has."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("torch"), name)
            vars(self)[name] = value  # from now on found without coming here
            return value

    torch = _Torch()
