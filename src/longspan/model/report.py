"""The report of ``extend``: plain values that print as a table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from longspan.memory import KVTier
from longspan.methods import Method
from longspan.methods.parse import written
from longspan.terminal import Column, Sheet, plain_text


@dataclass(frozen=True)
class LayerReport:
    """One attention layer.

    Attributes:
        index: the layer's place in the model and the cache.
        name: the module's name.
        rope: the rotation that was recognised, for an attached layer.
        reason: why the layer stays stock, for the others.
        kv_bytes_per_token: bytes of cache for each token and row; 0 if the layer's cache is bounded.
    """

    index: int
    name: str
    rope: str | None
    reason: str | None
    kv_bytes_per_token: int


@dataclass(frozen=True)
class Report:
    """A model's attached method.

    Attributes:
        model: the model's class.
        method: the method with every parameter resolved.
        window: the trained window ``L`` in tokens.
        window_source: where the window was read.
        original_window: the window before the config's own RoPE scaling, if it differs.
        attached, stock: the layers that run the method, and the unchanged ones.
        warnings: notes for the user.
        kv_tier, kv_dir: where the attached layers' keys and values are stored, and the folder of the tier ``"disk"``.
        reason: why ``"auto"`` chose this method; None if it was named.
        calibration: the reduction of scores; None for exact scores.
        kernels: the implementation of attention.
        decode: how a single token is computed, with the reason if this is not one C call per layer.
        heads_hold: the longest text in tokens of which the heads of all layers together can keep every token at one
            query; None if no head chooses.
        ranks: this process and of how many, if the heads of the layers are split over processes; sizes are those of
            this one.
    """

    model: str
    method: Method
    window: int
    original_window: int | None
    attached: tuple[LayerReport, ...]
    stock: tuple[LayerReport, ...]
    warnings: tuple[str, ...]
    kv_tier: KVTier = "device"
    kv_dir: Path | None = None
    reason: str | None = None
    calibration: str | None = None
    kernels: str = "auto"
    window_source: str = ""
    decode: str = ""
    heads_hold: int | None = None
    ranks: tuple[int, int] | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values for each token of each row, over all layers whose cache grows."""
        return sum(layer.kv_bytes_per_token for layer in (*self.attached, *self.stock))

    @property
    def _place(self) -> str:
        files = f"in mapped files in {self.kv_dir if self.kv_dir is not None else tempfile.gettempdir()}"
        if self.kv_tier == "auto":
            return f"on the device; when memory runs short in host memory, then {files}"
        if self.kv_tier == "disk":
            return files
        return "in host memory" if self.kv_tier == "host" else "on the device"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        method = {name: value for name, value in self.method.parameters().items() if name != "angles"}
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "method": self.method.name,
            "parameters": method,
            "angles": {"name": type(self.method.angles).__name__, **asdict(self.method.angles)},
            "attached": [asdict(layer) for layer in self.attached],
            "stock": [asdict(layer) for layer in self.stock],
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_dir": str(self.kv_dir) if self.kv_dir is not None else None,
            "ranks": list(self.ranks) if self.ranks is not None else None,
            "warnings": list(self.warnings),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        source = self.window_source
        if self.original_window is not None:
            source += f"; original_max_position_embeddings {self.original_window}"
        size = f"{self.kv_bytes_per_token * 1000 / 2**20:.2f} MiB per 1,000 tokens and row"
        covered = f"at most {self.heads_hold:,} tokens per query, in all layers together" if self.heads_hold else None
        rows: list[tuple[str | Text, str | None]] = [
            ("model", self.model),
            ("method", self.method.name if self.reason is None else f"{self.method.name} ({self.reason})"),
            *((f"  {name}", str(value)) for name, value in self.method.parameters().items()),
            ("  calibration", self.calibration),
            ("window", f"{self.window} tokens ({source})"),
            ("heads cover", covered),
            ("attached", _summary(self.attached, "rope") or "no layer"),
            ("stock", _summary(self.stock, "reason") or "no layer"),
            ("heads", self.ranks and "those of rank {}, one of {} equal shares".format(*self.ranks)),
            ("cache", f"{size}, {self._place}"),
            ("kernels", self.kernels),
            ("decoding", self.decode),
            *((Text("note", "yellow"), warning) for warning in self.warnings),
        ]
        shown = [(name, value) for name, value in rows if value]
        yield Sheet([Column("", style="bold"), Column("")], shown, headed=False)

    def __str__(self) -> str:
        return plain_text(self, 110)

    def __repr__(self) -> str:
        """At most three lines, for a prompt of Python; ``print`` and ``str`` have all of it."""
        layers = f"{len(self.attached)} of {len(self.attached) + len(self.stock)} layers"
        notes = f", {len(self.warnings)} note{'s' if len(self.warnings) > 1 else ''}" if self.warnings else ""
        return (
            f"<longspan.Report: {written(self.method)} in {layers} of {self.model}\n"
            f"window {self.window:,} tokens, {self.kv_bytes_per_token:,} bytes a token, {self.kernels}{notes}; "
            "print it for all>"
        )

    def _repr_html_(self) -> str:
        """The long form for a notebook."""
        console = Console(record=True, file=StringIO(), width=110)
        console.print(self)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _summary(layers: Iterable[LayerReport], why: str) -> str:
    """``layers 0-3, 5: reason`` for each reason, in order of first appearance."""
    groups: dict[str, list[int]] = {}
    for layer in layers:
        groups.setdefault(getattr(layer, why) or "", []).append(layer.index)
    return "\n".join(f"{_ranges(indices)}: {reason}" for reason, indices in groups.items())


def _ranges(indices: list[int]) -> str:
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    text = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
    return f"layer{'s' if len(indices) > 1 else ''} {text}"
