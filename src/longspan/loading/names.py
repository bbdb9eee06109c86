"""What the name of a model stands for."""

from __future__ import annotations

from pathlib import Path

from longspan.bundled import FOLDER
from longspan.errors import LongspanError
from longspan.loading.known import KNOWN, fetched

BUNDLED = "bundled"


def origin(name: str) -> str:
    """The model's source as documents state it: a file or folder as an absolute path, else the name."""
    return name if is_short(name) or not Path(name).exists() else str(Path(name).resolve())


def path_of(name: str) -> str:
    """The folder or the GGUF file of a short name; any other name, also of the hub, as it is.

    Raises:
        LongspanError: the model of a short name is not on this machine.
    """
    if name == BUNDLED:
        return str(FOLDER)
    if name not in KNOWN:
        return name
    found = fetched(KNOWN[name])
    if found is None:
        size = KNOWN[name].size / 1e6
        raise LongspanError(f"{name} is not on this machine; bring it, {size:,.0f} MB: longspan fetch {name}")
    return str(found)


def is_short(name: object) -> bool:
    """Whether this is the bundled model's name, or one that ``longspan fetch`` knows."""
    return name == BUNDLED or name in KNOWN
