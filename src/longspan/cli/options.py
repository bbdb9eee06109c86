"""Arguments and options that several commands have."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from longspan.errors import MOST, LongspanError

if TYPE_CHECKING:
    from longspan.methods import Method

T = TypeVar("T", bound=Callable[..., None])
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MODEL = "A model folder, a GGUF file, a name of `longspan fetch`, a hub name, or 'bundled'."

ModelArgument = Annotated[str, typer.Argument(help=MODEL)]
MethodOption = Annotated[
    str,
    typer.Option(
        help="A method, such as dca or, with parameters, dca:chunk_size=256; a file of `longspan tune`; 'auto' "
        "chooses one. `longspan methods` lists the methods."
    ),
]
Parameters = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the method; repeatable.")
]
ScaledAngles = Annotated[
    str | None,
    typer.Option(help="Scaled angles for the method: pi, ntk, dynamic-ntk or yarn; default: the method's own."),
]
CalibrationFile = Annotated[
    Path | None, typer.Option(help="A file of reduced scores, written by `longspan calibrate`; default: exact scores.")
]
Window = Annotated[int | None, typer.Option(help="The trained window in tokens; default: from the config.", min=1)]
Dtype = Annotated[
    str,
    typer.Option(
        help="The dtype to compute in: float32, bfloat16, float16 or, for packed weights on a CPU, mixed; auto keeps "
        "the checkpoint's, and is mixed for packed weights."
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        help="The form of the matrices: as-is, int8, int4, fp32, bf16 or fp16; auto keeps what the checkpoint has, "
        "codes of a GGUF file among it."
    ),
]
Device = Annotated[
    str, typer.Option(help="The device of the model: cpu, cuda, ...; auto is a CUDA GPU if there is one, else the CPU.")
]
KvTier = Annotated[
    str, typer.Option(help="The storage of the cache: device, host or disk; auto moves it when memory is nearly full.")
]
KvDir = Annotated[
    Path | None,
    typer.Option(
        help="The folder for --kv-tier disk or auto, on a fast disk; default: the folder for temporary files."
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="Draft tokens and verify several in one forward: lookup, from the text itself, or auto; the tokens stay "
        "the method's own. Default: one token a forward.",
    ),
]
AnswerTokens = Annotated[int, typer.Option(help="The largest length of an answer in tokens.", min=1)]

# Commands on a document.
DocumentArgument = Annotated[Path, typer.Argument(help="The folder of a document, of `longspan read` or `serve`.")]
ReaderModel = Annotated[
    str | None, typer.Option(help="The model that read the document; default: the one that the document names.")
]
ReaderWeights = Annotated[
    str,
    typer.Option(
        help="The form of the matrices, as of `longspan read`; auto is the one that the document was read with."
    ),
]
OtherWeights = Annotated[
    bool,
    typer.Option(
        "--allow-other-weights",
        help="Take a document that other weights of the model read (--weights, --model), and say how far off they are.",
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Compare all checksums of the document first.")]

# Every command.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")]


def examples(*lines: str) -> Callable[[T], T]:
    """The commands that a command's help ends with; they run in this order as they are printed."""

    def with_examples(command: T) -> T:
        command.examples = lines  # type: ignore[attr-defined]
        return command

    return with_examples


def new_path(help: str, **more: Any) -> Any:
    """An option for the path of what is to be written; an empty one would be the current folder."""

    def parse(text: str) -> Path:
        if not text.strip():
            raise typer.BadParameter("the name is empty")
        return Path(text)

    return typer.Option(parser=parse, metavar="PATH", help=help, **more)


def given(context: typer.Context, names: Sequence[str]) -> str:
    """Those of the options with these names that a command was given, as its user wrote them; else ``""``."""
    return ", ".join(
        (option.secondary_opts if context.params[option.name] is False else option.opts)[0]
        for option in context.command.params
        if option.name in names and (source := context.get_parameter_source(option.name)) and source.name != "DEFAULT"
    )


def method_or_auto(spec: str, settings: Sequence[str], angles: str | None) -> Method | str:
    """The method of ``name:key=value,…`` with further ``settings`` and ``angles``, ``"auto"``, or a preset's file.

    Raises:
        LongspanError: the spec or the preset is invalid, a parameter is set twice, or ``"auto"`` has parameters.
    """
    from longspan.methods.parse import build_method, split_spec
    from longspan.model.preset import Preset, is_preset

    if is_preset(spec):
        by_hand = Preset.read(spec).by_hand
        if settings or angles is not None:
            raise LongspanError(f"--method {spec}: a preset takes no --set or --angles; its method is {by_hand}")
        return spec
    name, parameters = split_spec(spec)
    if name == "auto":
        if parameters or settings or angles is not None:
            raise LongspanError("--method auto takes no parameters, --set or --angles; name a method to set them")
        return name
    spec_angles = parameters.pop("angles", None)
    if spec_angles is not None and angles is not None:
        raise LongspanError(f"{name}: the angles are set twice, by --method and by --angles")
    all_settings = [*(f"{key}={value}" for key, value in parameters.items()), *settings]
    return build_method(name, all_settings, angles if spec_angles is None else spec_angles, also=("auto",))


def length(option: str, text: str, window: int) -> int:
    """Tokens of ``131072``, ``200k`` (200 x 1024), ``1M`` or ``64x`` (windows).

    Raises:
        LongspanError: it is none of those.
    """
    found = re.fullmatch(r"(\d{1,10}(?:\.\d+)?)([KMX]?)", text.strip(), re.IGNORECASE)
    tokens = 0.0 if found is None else float(found[1]) * {**_UNITS, "X": window}[found[2].upper()]
    if found is None or not 1 <= tokens <= MOST or not (found[2] or tokens.is_integer()):
        raise LongspanError(f"{option} takes tokens such as 4096, 200k or 1M, or windows such as 4x, not {text!r}")
    return round(tokens)


def size(option: str, text: str) -> int:
    """Bytes of a size such as 512M."""
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise LongspanError(f"{option} must be a size such as 512M or 16G, not {text!r}")
    return int(found[1]) * _UNITS[found[2].upper()]
