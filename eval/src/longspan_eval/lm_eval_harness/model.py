"""``--model longspan``: lm-eval's model of transformers, on a model that longspan loaded and extended."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor

import longspan
from longspan.errors import LongspanError, check_count
from longspan.loading.models import load_model, load_tokenizer
from longspan.model.report import Report
from longspan.model.window import window_of
from longspan.text.encode import beginning
from longspan_eval.lm_eval_harness.arguments import AUTO, UNLIMITED, row_by_row, row_of, told
from longspan_eval.lm_eval_harness.synthetic import IDS, PROMPT
from longspan_eval.spec import STOCK, MethodSpec, plain

_log = logging.getLogger(__name__)

# Arguments that go on to lm-eval's own model; its others are about loading one, which longspan does.
PASSED_ON = (
    "max_length", "batch_size", "max_batch_size", "truncation", "logits_cache", "add_bos_token", "prefix_token_id",
    "softmax_dtype", "mixed_precision_dtype", "think_end_token", "enable_thinking", "chat_template_args",
)  # fmt: skip


@register_model("longspan")
class LongspanLM(HFLM):
    """An extended model for lm-eval.

    Args:
        pretrained: a model folder, a hub name, or ``"bundled"``.
        method: a row as ``longspan eval`` writes them: ``stock``, a name in ``METHODS``, perhaps with parameters
            (``longheads:score=bounds``), or ``auto``.
        length: tokens of the longest prompt and its answer, for methods that have to know how far to reach.
        window: the trained window in tokens, if the config is not right about it. A parameter of the method that is
            called window too (DCA's) is written after the method's colon: ``method=dca:window=4096``.
        kv_tier, kv_dir, impl: as of ``longspan.extend``.
        tokenizer: a folder or hub name, if it does not lie with the model.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda, ...
        max_length: tokens of prompt and answer beyond which lm-eval cuts a prompt's beginning, with a warning. Unless
            given, what the method reaches: PI, NTK, YaRN, Self-Extend and STRING have a limit, no other has.
        more: what of lm-eval's own arguments is in ``PASSED_ON``, ``calibration`` (a file, or ``bundled``), and
            parameters of the method or its angles (``chunk_size=3072,angles=yarn``).

    Raises:
        LongspanError: the model cannot be loaded or extended so, or an argument is not known.
    """

    batch_size_per_gpu: int | str  # lm-eval's

    def __init__(
        self,
        pretrained: str,
        method: str = "dca",
        length: int | None = None,
        window: int | None = None,
        kv_tier: str = "device",
        kv_dir: str | None = None,
        impl: str = "auto",
        tokenizer: str | None = None,
        dtype: str = "auto",
        device: str | None = "auto",
        **more: Any,
    ) -> None:
        passed = {name: more.pop(name) for name in PASSED_ON if name in more}
        row = _row(method, more, length)  # errors in it are raised before a model is loaded
        if window is not None:
            window = check_count("window", window)
        with _in_model_args():
            model = load_model(str(pretrained), window=window, dtype=str(dtype), device=device or "auto")
            words = load_tokenizer(str(tokenizer or pretrained))
        try:
            self.report = _extend(model, row, more, window, length, kv_tier, kv_dir, impl)
        except ValueError as error:
            raise LongspanError(str(error)) from error
        trained = self.report.window if self.report is not None else window or window_of(model)
        limit = None if self.report is None else self.report.method.longest(trained)
        batch = str(passed.get("batch_size", 1))
        if batch.startswith("auto") and passed.get("max_length") is None and limit is None:
            raise LongspanError(
                f"batch_size={batch} is found by reading a prompt as long as the longest, and {method} has no limit: "
                "give max_length=TOKENS as well, or a number as the batch size"
            )
        if passed.get("max_length") is None:
            passed["max_length"] = UNLIMITED if limit is None else limit
        super().__init__(pretrained=model, tokenizer=words, **passed)
        self._exact: dict[str, list[int]] = {}
        for warning in () if self.report is None else self.report.warnings:
            _log.warning("%s", warning)

    def get_model_info(self) -> dict[str, Any]:
        """Facts of lm-eval beside the results, and the attached method with every parameter."""
        found: dict[str, Any] = super().get_model_info()
        found["longspan"] = {"version": longspan.__version__, "max_length": self.max_length, "method": STOCK}
        if self.report is not None:
            found["longspan"] |= {
                "method": self.report.method.name,
                "parameters": plain(self.report.method.parameters()),
                "window": self.report.window,
                "kv_tier": self.report.kv_tier,
                "calibration": self.report.calibration,
                "reason": self.report.reason,
            }
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """As lm-eval's; prompts of our synthetic tasks are read as exactly the tokens that they were built from.

        Text that is tokenized anew may come out as other tokens: a length would not be exact, nor a prompt the one that
        ``longspan eval`` asks.
        """
        lead = beginning(self.tokenizer)
        for request in requests:
            doc, text = request.doc, request.args[0]
            ids = doc.get(IDS) if isinstance(doc, dict) else None
            # Not if lm-eval put something before the prompt, nor if it was made with another tokenizer.
            if ids is not None and text == doc[PROMPT] and text == self.tokenizer.decode(ids[len(lead) :]):
                self._exact[text] = list(ids)
        try:
            answers: list[str] = super().generate_until(requests, disable_tqdm=disable_tqdm)
            return answers
        finally:
            self._exact = {}

    def tok_encode(self, string: str, *args: Any, **more: Any) -> list[int]:
        """The tokens of a text."""
        if string in self._exact:
            return self._exact[string]
        ids: list[int] = super().tok_encode(string, *args, **more)
        return ids

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Tokens and mask ``[rows, longest]`` of several texts."""
        if not any(string in self._exact for string in strings):
            encoded: tuple[Tensor, Tensor] = super().tok_batch_encode(
                strings, padding_side, left_truncate_len, truncation
            )
            return encoded
        rows = [self._encoded(string, truncation) for string in strings]
        longest = max(map(len, rows))
        if left_truncate_len and longest > left_truncate_len:
            _log.warning("prompts of %d tokens are cut to their last %d", longest, left_truncate_len)
        return _padded(rows, self.tokenizer.pad_token_id, padding_side, left_truncate_len or longest)

    def _encoded(self, string: str, truncation: bool) -> list[int]:
        if string in self._exact:
            return self._exact[string]
        ids, _ = super().tok_batch_encode([string], truncation=truncation)
        row: list[int] = ids[0].tolist()
        return row

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """As lm-eval's, which pads a batch on the right without a mask: row by row if that would change a row."""
        batch = self.batch_size_per_gpu
        found: list[tuple[float, bool]]
        if self.report is None or batch == 1 or not row_by_row(self.report.method):
            found = super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
            return found
        _log.info("likelihoods are read one by one: %s would see the padding of a batch", self.report.method.name)
        self.batch_size_per_gpu = 1
        try:
            found = super()._loglikelihood_tokens(requests, disable_tqdm)
            return found
        finally:
            self.batch_size_per_gpu = batch


def _row(method: str, more: dict[str, Any], length: int | None) -> MethodSpec | None:
    """The row, told the length; None for ``auto``."""
    if method == AUTO:
        unknown = next((name for name in more if name != "calibration"), None)
        if unknown is not None:
            raise LongspanError(f"method=auto takes no {unknown}; name a method to set its parameters")
        told(MethodSpec(None), length)
        return None
    try:
        return told(row_of(str(method), more), length)
    except LongspanError as error:
        if "has no parameter" not in str(error) and "stock model has no" not in str(error):
            raise
        own = [name for name in inspect.signature(LongspanLM.__init__).parameters if name not in ("self", "more")]
        raise LongspanError(
            f"{error}. Besides those --model_args takes {', '.join([*own, 'calibration', *PASSED_ON])}"
        ) from error


def _extend(
    model: Any,
    row: MethodSpec | None,
    more: dict[str, Any],
    window: int | None,
    length: int | None,
    kv_tier: str,
    kv_dir: str | None,
    impl: str,
) -> Report | None:
    """The report; None for the stock model."""
    where: dict[str, Any] = {"window": window, "kv_tier": kv_tier, "kv_dir": kv_dir, "impl": impl}
    if row is None:
        # ``row_of`` resolves ``calibration=bundled``; it does so in the same way for every method.
        calibration = row_of("esa", more).calibration
        return longspan.extend(model, AUTO, length=length, calibration=calibration, **where)
    if row.method is None:
        given = next(
            (name for name in ("kv_tier", "kv_dir", "impl") if where[name] not in ("device", "auto", None)), ""
        )
        if given:
            raise LongspanError(f"the stock model runs without longspan, so {given} does not apply")
        return None
    return longspan.extend(model, row.method, calibration=row.calibration, **where)


@contextmanager
def _in_model_args() -> Iterator[None]:
    """Errors of loading that name an option of ``longspan`` name the argument that it is here."""
    try:
        yield
    except LongspanError as error:
        raise LongspanError(re.sub(r"--(window|dtype|device)\b", r"\1=", str(error))) from error


def _padded(rows: Sequence[list[int]], pad: int, side: str, width: int) -> tuple[Tensor, Tensor]:
    """Rows and their mask, the last ``width`` columns of them, padded on one side to the longest row."""
    longest = max(map(len, rows))
    ids, mask = torch.full((len(rows), longest), pad), torch.zeros(len(rows), longest, dtype=torch.long)
    for n, row in enumerate(rows):
        here = slice(longest - len(row), longest) if side == "left" else slice(len(row))
        ids[n, here], mask[n, here] = torch.tensor(row), 1
    return ids[:, -width:], mask[:, -width:]
