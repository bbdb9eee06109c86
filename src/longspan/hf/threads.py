"""Refuse to attach while another thread runs the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock, get_ident
from types import FrameType
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from longspan.errors import LongspanError

_looking = RLock()  # into a frame, by one thread at a time


def calls_of(module: nn.Module, thread: int) -> int:
    """How many calls of a module a thread is in; calls it left by an exception of any kind do not count."""
    frames = _frames(sys._current_frames().get(thread))
    return sum(frame.f_code.co_name == "_call_impl" and _self_of(frame) is module for frame in frames)


@contextmanager
def alone(model: PreTrainedModel) -> Iterator[None]:
    """Change a model in this block: another thread that is in it makes this raise, one that comes in is turned away.

    Raises:
        LongspanError: another thread is in a forward, or in ``generate``.
    """
    thread_id = get_ident()

    def refuse(module: nn.Module, args: Any) -> None:
        if get_ident() != thread_id:
            raise LongspanError(
                "another thread is running longspan.extend, inspect or restore on the model; run the model after it"
            )

    parts = list(model.modules())
    with ExitStack() as stack:
        for part in parts:
            if isinstance(part, PreTrainedModel):
                stack.callback(part.register_forward_pre_hook(refuse, prepend=True).remove)
        # After the hooks: a thread is either seen here, or turned away by them.
        if any(_is_in(frame, set(parts)) for frame in sys._current_frames().items() if frame[0] != thread_id):
            raise LongspanError(
                "another thread is running the model; wait for it to end before you extend, inspect "
                "or restore the model"
            )
        yield


def _is_in(thread: tuple[int, FrameType], parts: set[nn.Module]) -> bool:
    # By ``self`` of any of the thread's frames: ``generate`` is between two forwards for a part of its time.
    methods = (frame for frame in _frames(thread[1]) if frame.f_code.co_varnames[:1] == ("self",))
    return any(isinstance(x, nn.Module) and x in parts for x in map(_self_of, methods))


def _self_of(frame: FrameType) -> Any:
    """``self`` of a method that runs, in any thread.

    Before Python 3.13 a look into a frame leaves its variables in a dict, and the next look puts others there. If
    that frees a tensor, torch gives up the interpreter's lock: the thread may leave the frame, and the look goes on in
    freed memory. So nothing is left there.
    """
    with _looking:
        variables = frame.f_locals
        found = variables.get("self")
        # Held by the frame, this name and the call alone: nobody has it from locals(), or writes it back to the frame.
        if isinstance(variables, dict) and frame.f_trace is None and sys.getrefcount(variables) == 3:
            variables.clear()
    return found


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
