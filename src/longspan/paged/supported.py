"""Which methods can run on keys that are stored once, in pages that requests of any length share."""

from __future__ import annotations

from longspan.choosing.chunks import Chunks
from longspan.choosing.own import says_itself
from longspan.errors import AttachError
from longspan.methods import Method
from longspan.positions import Chunked

_CHOSEN = "longheads with score=bounds and remap=dca"


def check_pages(method: Method, window: int) -> None:
    """Raise ``AttachError`` unless a resolved method can run on keys that are stored once, in shared pages."""
    if (reason := _unsupported_reason(method, window)) is not None:
        raise AttachError(f"{method.name} cannot run, because {reason}")


def _unsupported_reason(method: Method, window: int) -> str | None:
    here = f"take {_CHOSEN}" if method.selects else "take dca"
    elsewhere = f"{here}, or run it on transformers with longspan.extend"
    selection = method.selection(window)
    known = isinstance(selection, Chunks) and says_itself(selection, "in_kernels") and selection.score == "bounds"
    if method.selects and not known:
        return (
            "it chooses keys by more than the smallest and the largest of each chunk, which is all that a page keeps "
            f"to choose by; {elsewhere}"
        )
    if method.selects and not isinstance(method.positions(window), Chunked):
        return f"queries see each chunk that they choose from a position of its own; {elsewhere}"
    if method.angles.dynamic:
        return f"its angles follow the length of the text, and requests of any length share pages; {elsewhere}"
    if method.length_dependent:
        return (
            "its factor on scores follows the length of the text, so results would depend on how a prompt is cut into "
            "chunks; leave length_scale out, or set it to 0"
        )
    rotations = len(method.key_maps(window))
    if rotations > 1:
        return f"it sees keys in {rotations} rotations, and a page holds each key in one; {elsewhere}"
    return None
