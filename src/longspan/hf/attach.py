"""Attach a method to a transformers model and take it off again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from longspan.attend import Attender
from longspan.calibration import Calibration
from longspan.drafting import Drafts
from longspan.errors import LongspanError
from longspan.hf import interface
from longspan.hf.cache import LongspanCache
from longspan.hf.drafted import drafting_of, shadow_drafted, unshadow_drafted
from longspan.hf.drafting import Draft, check_draft
from longspan.hf.generation import shadow, unshadow
from longspan.hf.hooks import Attachment
from longspan.hf.prepare import prepare
from longspan.hf.threads import alone
from longspan.kernels.banded import Impl
from longspan.memory import KVTier
from longspan.methods import Method
from longspan.model.auto import tell
from longspan.model.layer import Layer
from longspan.model.report import Report
from longspan.model.unwrap import unwrap
from longspan.rope import Angles

_attached: WeakKeyDictionary[PreTrainedModel, Attachment] = WeakKeyDictionary()
_changing = RLock()  # a probe sends the model's layers elsewhere for a while: no other thread may change it meanwhile


def extend(
    model: PreTrainedModel,
    method: str | Method | Angles | type[Method | Angles] = "auto",
    *,
    window: int | None = None,
    angles: Angles | None = None,
    impl: Impl = "auto",
    calibration: Calibration | str | Path | None = None,
    kv_tier: KVTier = "device",
    kv_dir: str | os.PathLike[str] | None = None,
    length: int | None = None,
    draft: Draft | None = None,
    **parameters: Any,
) -> Report:
    """Let a model read beyond its window, in place.

    ``model(...)``, ``generate`` and pipelines work as before. A model that is already extended is restored first.

    Args:
        model: a causal transformers model with rotary positions; see the page on models for those that it rejects.
        method: a name in ``METHODS``, a method or its class, scaled angles (full attention under those), or ``"auto"``,
            which chooses by ``length``, window, memory, calibration and presets, and reports the choice and the reason;
            see ``longspan.model.auto``. A name that ends in ``.json`` is a preset's file, written by ``longspan tune``;
            it states the window, too.
        window: the trained window in tokens; default: ``max_position_embeddings`` of the config.
        angles: scaled angles for the method.
        impl: the implementation of attention; see ``longspan.kernels.dispatch``. A named implementation runs or raises.
            ``"compiled"`` requires that C computes a single token in one call per layer; ``"auto"`` takes separate
            kernels if it cannot, and ``Report.decode`` has the reason. Scores and choices take what ``"auto"``
            takes, without C under ``"torch"``, ``"flash_cpu"`` and ``"reference"``.
        calibration: reduced scores for methods that select keys by them: the result of ``longspan.calibrate``, or the
            path of its file. ``extend`` then hashes the weights, about one second per gigabyte.
        kv_tier: where the cache keeps keys and values: ``"device"``, the model's; ``"host"``, the memory of the CPU
            (for a model on the CPU that is the same); ``"disk"``, files mapped into memory, for a context larger than
            that; ``"auto"``, the device until its memory is nearly full, then the host's, then files: a cache moves
            there in place, with a warning. The tokens do not depend on the tier. For a model on a GPU, all tiers but
            ``"device"`` require a method that selects keys: the selected keys are fetched, and the last ``window``
            tokens stay on the device as well. Under another method ``"auto"`` is ``"device"`` there, and the report
            says so.
        kv_dir: for ``"disk"`` and ``"auto"``, an existing folder, best on a fast local disk; default: the system's
            folder for temporary files. The files have no names and are deleted with the cache or the process.
        length: tokens of the longest prompt and its answer, for ``"auto"`` and for methods with a target length
            that have no value of their own.
        draft: draft the tokens of ``generate`` and verify several in one forward: ``"lookup"`` proposes what followed
            the last tokens where they stood before in the text; ``"auto"`` does so for greedy and sampled answers and
            leaves beams and assisted decoding alone, which a named drafter refuses. Every token is the method's own,
            greedy or sampled; the number drafted follows what was accepted and what forwards take. See
            ``docs/drafting.md``.
        parameters: those of the method or of its angles, if it is given by its name or class:
            ``extend(model, "dca", chunk_size=3)`` is ``extend(model, DCA(chunk_size=3))``.

    Returns:
        The layers that run the method, the layers that stay stock, and the reasons.

    Raises:
        AttachError: a layer is not supported, or there is none to attach to, or ``draft`` does not support the model;
            the model is unchanged.
        CalibrationError: the calibration cannot be read or belongs to another model; the model is unchanged.
        CacheError: ``kv_tier`` does not support this method on this device; the model is unchanged.
        LongspanError: a parameter is unknown or invalid, ``kv_dir`` included, or the named ``impl`` cannot run.
    """
    inner = unwrap(model)
    with _changing, alone(inner):
        previous = _attached.get(inner)
        restore(inner)
        try:
            report, attender, layers = prepare(
                model, method, window=window, angles=angles, impl=impl, calibration=calibration, kv_tier=kv_tier,
                kv_dir=kv_dir, length=length, **parameters,
            )  # fmt: skip
            attachment = Attachment(inner, attender, layers, report)
            attachment.drafting = drafting_of(attachment, inner, draft)
        except BaseException:
            if previous is not None:
                _attach(inner, previous)
            raise
        _attach(inner, attachment)
        if report.reason is not None:
            tell(f"{report.method.name}: {report.reason}")
        return report


def restore(model: PreTrainedModel) -> None:
    """Take the method off; the model is what it was before ``extend``. Does nothing to a model that is not extended."""
    model = unwrap(model)
    with _changing:
        _refuse_copies(model)
        attachment = _attached.get(model)
        if attachment is not None:
            with alone(model):
                attachment.detach(model)
                unshadow_drafted(model)
                unshadow(model)
                del _attached[model]


@contextmanager
def extended(
    model: PreTrainedModel, method: str | Method | Angles | type[Method | Angles] = "auto", **options: Any
) -> Iterator[Report]:
    """``extend`` for a ``with`` block; what was attached before is attached again after it.

    Args:
        options: those of ``extend``: ``window``, ``angles``, ``impl``, ``calibration``, ``kv_tier``, ``kv_dir``,
            ``length``, ``draft``, and parameters of the method.
    """
    inner = unwrap(model)
    with _changing:
        previous = _attached.get(inner)
        report = extend(model, method, **options)
    try:
        yield report
    finally:
        with _changing:  # as one: another thread's extend between the two would leave two attachments
            restore(inner)
            if previous is not None:
                _attach(inner, previous)


def inspect(
    model: PreTrainedModel, method: str | Method | Angles | type[Method | Angles] = "auto", **options: Any
) -> Report:
    """The report that ``extend`` would give; nothing stays changed.

    Args:
        options: those of ``extend``: ``window``, ``angles``, ``impl``, ``calibration``, ``kv_tier``, ``kv_dir``,
            ``length``, ``draft``, and parameters of the method.

    Raises:
        LongspanError: the model is extended already; and what ``extend`` raises.
    """
    return examine(model, method, **options)[0]


def examine(
    model: PreTrainedModel, method: str | Method | Angles | type[Method | Angles], **options: Any
) -> tuple[Report, Attender, list[Layer]]:
    """``prepare`` for a model that is not extended, while no other thread changes it."""
    inner = unwrap(model)
    check_draft(draft := options.pop("draft", None))
    with _changing:
        if inner in _attached:
            raise LongspanError(
                "the model is already extended, and extend returned its report; for another report call "
                "longspan.restore(model) first"
            )
        with alone(inner):
            _refuse_copies(inner)
            report, attender, layers = prepare(model, method, **options)
            drafting_of(Attachment(inner, attender, layers, report), inner, draft)
            return report, attender, layers


def attachment_of(model: PreTrainedModel) -> Attachment | None:
    """The attachment of a model, for the rest of ``longspan.hf``; None for a model that is not extended."""
    return _attached.get(unwrap(model))


def attached_to(model: PreTrainedModel) -> Attachment:
    """The attachment of a model; raises ``LongspanError`` if it is not extended."""
    attachment = attachment_of(model)
    if attachment is None:
        raise LongspanError("the model is not extended: call longspan.extend(model, ...) first")
    return attachment


def drafts_of(model: PreTrainedModel) -> Drafts | None:
    """What was drafted for the last answer of ``generate`` in this thread; None if the model does not draft.

    Raises:
        LongspanError: the model is not extended.
    """
    return attached_to(model).thread.drafts


def new_cache(model: PreTrainedModel) -> LongspanCache:
    """An empty cache for an extended model, to be kept over several calls.

    It is passed as ``cache=`` to the model and to ``generate``, with every release of transformers. The name before
    5.24, ``past_key_values=``, is taken, too; later releases warn of it.
    """
    return attached_to(model).new_cache()


def _attach(model: PreTrainedModel, attachment: Attachment) -> None:
    attachment.attach(model)
    shadow(model, attachment)
    if attachment.drafting is not None:
        shadow_drafted(model, attachment, attachment.drafting)
    _attached[model] = attachment


def _refuse_copies(model: PreTrainedModel) -> None:
    if model not in _attached and model.config._attn_implementation == interface.NAME:
        raise LongspanError(
            "the model is a copy or a submodule of an extended model, or was created from its config; call "
            "longspan.restore on the extended model first, or extend the complete model"
        )
