"""Facts of a model, its tokenizer and its method, as a manifest states them; and how two sets of them differ."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from longspan.documents import fingerprint
from longspan.documents.contents import Contents
from longspan.documents.folder import Folder
from longspan.documents.layout import find_layout
from longspan.documents.manifest import FORMAT, Facts, Layout, differences, plain, shown
from longspan.errors import DocumentError
from longspan.hf.calibration.check import dtype_name
from longspan.hf.hooks import Attachment
from longspan.methods import METHODS
from longspan.text.encode import tokenizer_hash
from longspan.version import __version__
from longspan.weights import PACKED_AS

_BUNDLED = Path(__file__).resolve().parents[1] / "bundled"
_ALLOW = "let others answer (`ask` and `chat` have --allow-other-weights)"
# Fields that have to match to go on from a document, in the order of the report, with the way out.
_HAVE_TO_MATCH = {
    "model": "load the model that read it",
    "config": "load the model that read it",
    "dtype": "load the model in that type",
    "weights": f"load the model with its weights in that form, or {_ALLOW}",
    "weights_sha256": f"load the weights that read it, or {_ALLOW}",
    "tokenizer_sha256": "load the tokenizer that it was read with",
    "method": "extend the model with its method",
    "parameters": "extend the model with its parameters",
    "angles": "extend the model with its angles",
    "window": "extend the model with its window",
    "calibration_sha256": "extend the model with its calibration",
}


def facts_of(
    model: PreTrainedModel,
    tokenizer: Any,
    attachment: Attachment,
    contents: Contents,
    *,
    prefill_chunk: int,
    layout: Layout,
    source: str | None = None,
) -> Facts:
    """Everything that a manifest says before the text is read.

    Raises:
        DocumentError: the method has no name that it could be opened by.
    """
    method, calibration = attachment.attender.method, attachment.attender.calibration
    if METHODS.get(method.name) is not type(method):
        raise DocumentError(
            f"{type(method).__name__} is not in longspan.METHODS, so no manifest can name it; you can ask such a "
            "document, but not save it"
        )
    own = {name: value for name, value in method.parameters().items() if name != "angles"}
    return Facts(
        format=FORMAT,
        longspan=__version__,
        tokens=contents.length,
        tokens_sha256=contents.encoded.sha256,
        tokenizer_sha256=tokenizer_hash(tokenizer),
        source=source if source is not None else _source_of(model),
        model=type(model).__name__,
        config=fingerprint.config_of(model.config),
        weights_sha256=fingerprint.weights_of(model),
        dtype=dtype_name(model),
        weights=str(getattr(model, PACKED_AS, "")),
        method=method.name,
        parameters=own,
        angles={"name": type(method.angles).__name__, **asdict(method.angles)},
        window=attachment.report.window,
        calibration_sha256="" if calibration is None else calibration.maps_sha256,
        machine=fingerprint.machine_of(model, attachment.report),
        prefill_chunk=prefill_chunk,
        kv=contents.kv,
        layout=layout,
        keeps_text=contents.encoded.keeps_text,
        sources=contents.sources,
    )


def _source_of(model: PreTrainedModel) -> str:
    """The source of a model; the bundled one by its name, since each installation has another path."""
    name = str(getattr(model.config, "_name_or_path", "") or "")
    return _BUNDLED.name if name and Path(name).resolve() == _BUNDLED else name


def layout_for(tokenizer: Any, wanted: str, folder: Folder | None, system: str = "") -> Layout:
    """``find_layout``, or of the same tokenizer's chat template what a folder keeps of it.

    A template may print the date, and a reading that goes on tomorrow goes on from the tokens of today.

    Args:
        folder: that the document is in, or a reading that was not finished; None if there is none.

    Raises:
        DocumentError: see ``find_layout``; the folder's manifest is damaged.
    """
    layout = find_layout(tokenizer, wanted, system)
    if folder is None or not layout.templated:
        return layout
    manifest = folder.manifest() if folder.has_document() else folder.unfinished()
    if manifest is None:
        return layout
    kept = manifest.facts.layout
    same = kept.templated if wanted == "auto" else kept.name == layout.name  # its default may have been another one
    if not same or kept.system != layout.system:
        return layout
    return kept if manifest.facts.tokenizer_sha256 == tokenizer_hash(tokenizer) else layout


def difference(kept: Facts, live: Facts, besides: Set[str] = frozenset()) -> str | None:
    """The difference of two sets of facts besides these fields, as a noun with both values; None if there is none."""
    if (kept.tokens, kept.tokens_sha256, kept.sources) != (live.tokens, live.tokens_sha256, live.sources):
        return f"text ({_text_of(kept)}, now {_text_of(live)})"
    differ = [one for one in differences(plain(kept), plain(live)) if one[0] not in besides]
    if not differ:
        return None
    name, a, b = differ[0]
    return f"{name} ({shown(a)}, now {shown(b)})"


def _text_of(facts: Facts) -> str:
    names = ", ".join(dict.fromkeys(one.name for one in facts.sources if one.name)) or "a text without a name"
    return f"{shown(names)} of {facts.tokens:,} tokens"


def refuse_others(kept: Facts, live: Facts, besides: Set[str] = frozenset()) -> None:
    """Raise ``DocumentError`` unless a document belongs to this model, tokenizer and method: one line a difference.

    Args:
        besides: fields that may differ.
    """
    lines, a, b = [], plain(kept), plain(live)
    for name, way_out in _HAVE_TO_MATCH.items():
        if name == "weights_sha256" and (
            (kept.dtype, kept.weights) != (live.dtype, live.weights) or a["config"] != b["config"]
        ):
            continue  # other numbers by themselves
        if name in besides or (name in ("parameters", "angles") and kept.method != live.method):
            continue  # allowed, or those of another method
        differ = [
            f"{_words(field)} is {shown(x)} in the document and {shown(y)} here"
            for field, x, y in differences({name: a[name]}, {name: b[name]})
        ]
        if differ and name in ("parameters", "angles"):  # of one method, so one line
            differ = [", ".join(differ)]
        lines += [f"{one}: {way_out}" for one in differ]
    if lines:
        raise DocumentError("\n".join([*lines[:-1], f"{lines[-1]}, or read the text again"]))


def _words(field: str) -> str:
    """A field as it is called in a message."""
    first, _, rest = field.partition(".")
    names = {"weights_sha256": "the weights' hash", "tokenizer_sha256": "the tokenizer's hash"}
    names |= {"weights": "the form of the weights"}
    names |= {"calibration_sha256": "the calibration's hash", "config": "the config's"}
    names |= {"parameters": "the method's", "angles": "the angles'"}
    named = names.get(first, f"the {first}")
    return f"{named} {rest}" if rest else named
