"""The rotary modules of a model, watched: what was probed has to be what the model still has."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import NoReturn

import torch
from torch import Tensor, nn

from longspan.errors import LongspanError
from longspan.model.placement import present
from longspan.rope import Table

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # that a model may have been cast to in between


def frequencies(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Each set of frequencies that a model holds, where it runs: path and module, name in it, ``[r / 2]``."""
    for path, module in model.named_modules(remove_duplicate=False):  # one that is held twice may be replaced once
        with present(module):
            for name, freq in module.named_buffers(recurse=False):
                if name.endswith("inv_freq") and "original" not in name and freq.dim() == 1:
                    yield path, module, name, freq


def factor_of(module: nn.Module, name: str) -> float:
    """The attention scaling of one of them."""
    prefix = name[: -len("inv_freq")]
    factor: float = getattr(module, f"{prefix}attention_scaling", getattr(module, "attention_scaling", 1.0))
    return factor


class Watched:
    """One set of frequencies that rotates queries and keys of attached layers.

    A forward compares which tensor it is and how often that was written to, which takes no look at its values; those
    are compared only if one of these changed, as by ``model.to``.
    """

    def __init__(self, parent: nn.Module, place: str, module: nn.Module, name: str, freq: Tensor) -> None:
        self._parent, self._place, self._name = weakref.ref(parent), place, name
        self._kind, self._factor = type(module), factor_of(module, name)
        self._probed = self._last = freq.detach().clone().cpu()
        self._seen = freq, _version(freq)

    def check(self) -> None:
        """Raise ``LongspanError`` if the model's frequencies are no longer those that were probed."""
        parent = self._parent()
        module = parent._modules.get(self._place) if parent is not None and self._place else parent
        freq = module._buffers.get(self._name) if module is not None else None
        if (
            module is None
            or freq is None
            or (type(module), factor_of(module, self._name)) != (self._kind, self._factor)
        ):
            _refuse()
        held, version = self._seen
        if (freq is held and _version(freq) == version) or freq.device.type == "meta":  # there if offloaded
            return
        now = freq.detach().cpu()
        if not any(_cast(known, now) for known in (self._last, self._probed)):
            _refuse()
        self._last, self._seen = now.clone(), (freq, _version(freq))


def watched(model: nn.Module, tables: list[Table]) -> list[Watched]:
    """The frequencies of a model that the tables of its attached layers were made from."""
    used = [table.inv_freq.abs().cpu() for table in {id(table): table for table in tables}.values()]
    found = []
    for path, module, name, freq in frequencies(model):
        if any(torch.equal(freq.detach().float().abs().cpu(), one) for one in used):
            above, _, place = path.rpartition(".")
            found.append(Watched(model.get_submodule(above), place, module, name, freq))
    return found


def _version(freq: Tensor) -> int:
    # Tensors of inference mode do not count what is written to them.
    return -1 if freq.is_inference() else freq._version


def _cast(known: Tensor, now: Tensor) -> bool:
    """Whether one is the other but for the rounding of dtypes on the way."""
    return any(torch.equal(known.to(dtype).to(now.dtype), now) for dtype in (now.dtype, *_DTYPES))


def _refuse() -> NoReturn:
    raise LongspanError(
        "the model's rotary positions changed after longspan.extend, which runs on those it had then; call "
        "longspan.restore(model) and extend it again"
    )
