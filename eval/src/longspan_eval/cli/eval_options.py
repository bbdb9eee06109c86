"""Options that commands of longspan-eval share, and values of those of ``longspan eval``, read and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan import files
from longspan.cli import options
from longspan.cli.texts import STDIN, read_text
from longspan.errors import AttachError, LongspanError

if TYPE_CHECKING:
    from longspan.memory import KVTier
    from longspan_eval.spec import MethodSpec
    from longspan_eval.subject import Subject

MaxFullSeconds = Annotated[
    float | None, typer.Option(help="Seconds per prompt above which cells of full attention are marked, not measured.")
]
RetryErrors = Annotated[bool, typer.Option(help="Repeat the prompts that ended in an error.")]


def parse_lengths(text: str, window: int) -> tuple[int, ...]:
    """Lengths in tokens, each as ``options.length`` takes it, set apart by commas."""
    return tuple(options.length("--lengths", piece, window) for piece in text.split(","))


def check_folder(out: Path) -> None:
    """Raise if the folder of a run cannot be one."""
    if out.exists() and not out.is_dir():
        raise LongspanError(f"--out {out}: is a file; name a folder")


def kept_text(path: Path, out: Path, dry_run: bool) -> Path:
    """The path of a text; what comes in on stdin is kept in the run's folder, where its readers find it again.

    Its file is named by what is in it: another run may be reading one of the same folder.
    """
    if path != STDIN:
        return path
    if dry_run:
        raise LongspanError("--dry-run writes no files, but a text from stdin is saved in --out; name a file")
    text = read_text(path)
    kept = out / f"stdin-{hashlib.sha256(text.encode()).hexdigest()[:12]}.txt"
    out.mkdir(parents=True, exist_ok=True)
    files.write(kept, text)
    return kept


def check_spec(
    spec: MethodSpec, model: Any, subject: Subject, lengths: Sequence[int], window: int | None, kv_tier: KVTier
) -> None:
    """Raise if a method cannot be at any length; a length that it alone cannot reach is an error in its cell.

    Args:
        model: to try it on; None looks at the method alone.
    """
    from longspan.hf import restore

    parameters = [spec.parameters(subject.window, length) for length in lengths]
    good = [length for length, shown in zip(lengths, parameters, strict=True) if "error" not in shown]
    if not good:
        raise LongspanError(f"{spec.label}: {parameters[0]['error']}")
    if model is None:
        return
    try:
        spec.attach(model, good[0], window, kv_tier=kv_tier)
    except AttachError:
        raise
    except ValueError as error:
        raise LongspanError(f"{spec.label}: {error}") from error
    finally:
        restore(model)


def check_tier(kv_tier: str) -> KVTier:
    """The value of ``--kv-tier``, checked."""
    from longspan import memory as store

    try:
        store.check_tier(kv_tier, None)  # type: ignore[arg-type]  # which is what it checks
    except ValueError as error:
        raise LongspanError(f"--kv-tier {kv_tier}: {error}") from error
    return kv_tier  # type: ignore[return-value]
