"""Methods written as text: ``key=value`` settings, and one line that says all, such as ``dca:chunk_size=256``."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from longspan.errors import LongspanError, did_you_mean
from longspan.methods import METHODS, Method
from longspan.rope import NTK, PI, Angles, DynamicNTK, YaRN

ANGLES: dict[str, type[Angles]] = {"pi": PI, "ntk": NTK, "dynamic-ntk": DynamicNTK, "yarn": YaRN}


def build_method(
    name: str,
    settings: Sequence[str] = (),
    angles: str | None = None,
    methods: Mapping[str, type[Method]] = METHODS,
    *,
    also: Sequence[str] = (),
) -> Method:
    """One of ``methods`` with ``key=value`` settings for its parameters, or for those of its angles.

    Args:
        also: names that the caller knows besides, for the error's sake.

    Raises:
        LongspanError: no such method, angles or parameter, or a value that cannot be.
    """
    if name not in methods:
        raise LongspanError(no_method(name, also, methods))
    if angles is not None and angles not in ANGLES:
        raise LongspanError(
            f"no angles are called {angles!r}; there are {', '.join(ANGLES)}{did_you_mean(angles, ANGLES)}"
        )
    kind = methods[name]
    under = kind().angles if angles is None else ANGLES[angles]()
    own, of_angles = _keys(kind, without="angles"), _keys(type(under))
    given: dict[str, Any] = {}
    given_angles: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise LongspanError(f"a setting is key=value, not {setting!r}")
        if key in given or key in given_angles:
            raise LongspanError(f"{name}: {key} is set twice")
        if key in own:
            given[key] = _parse(key, value.strip(), own[key])
        elif key in of_angles:
            given_angles[key] = _parse(key, value.strip(), of_angles[key])
        else:
            known = [*own, *of_angles]
            raise LongspanError(
                f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}{did_you_mean(key, known)}"
            )
    try:
        return kind(**given, angles=replace(under, **given_angles))
    except ValueError as error:
        raise LongspanError(str(error)) from error


def no_method(name: str, also: Sequence[str] = (), methods: Mapping[str, type[Method]] = METHODS) -> str:
    """Why ``name`` is no method: those that there are, ``also`` among them, and what it may have meant."""
    known = [*methods, *also]
    return f"no method is called {name!r}; there are {', '.join(known)}{did_you_mean(name, known)}"


def written(method: Method) -> str:
    """The line that ``parse_method`` makes this method of: its name, and the parameters that differ from the defaults.

    It is what tables, pictures and messages call a method, so equal labels are equal methods.
    """
    usual = type(method)()
    settings = _differing(method, usual, without="angles")
    angles = method.angles
    if type(angles) is not type(usual.angles):
        settings["angles"] = next((name for name, kind in ANGLES.items() if type(angles) is kind), "none")
    settings |= _differing(angles, usual.angles if type(angles) is type(usual.angles) else type(angles)())
    return method.name + (":" + ",".join(f"{key}={value}" for key, value in settings.items()) if settings else "")


def _differing(one: Any, other: Any, without: str | None = None) -> dict[str, str]:
    """The fields of a dataclass that differ from another's, as ``_parse`` reads them."""
    names = [f.name for f in fields(one) if f.name != without and getattr(one, f.name) != getattr(other, f.name)]
    return {name: _text(getattr(one, name)) for name in names}


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) and not value.is_integer() else f"{value}".removesuffix(".0")


def split_spec(spec: str) -> tuple[str, dict[str, str]]:
    """``name:key=value,key=value`` as the name and its settings, both still text.

    Raises:
        LongspanError: a piece is no ``key=value``, or a key comes twice.
    """
    name, colon, rest = spec.partition(":")
    if not name.strip() or (colon and not rest.strip()):
        raise LongspanError(f"{spec!r}: a method is written as name or name:key=value,key=value")
    settings: dict[str, str] = {}
    for piece in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not (key and equals and value):
            raise LongspanError(f"{spec!r}: {piece!r} is not key=value")
        key = key.replace("-", "_")
        if key in settings:
            raise LongspanError(f"{spec!r}: {key} is set twice")
        settings[key] = value
    return name.strip(), settings


def parse_method(spec: str, methods: Mapping[str, type[Method]] = METHODS) -> Method:
    """The method of ``name:key=value,…``; the key ``angles`` puts scaled angles under it (``dca:angles=yarn``)."""
    name, settings = split_spec(spec)
    angles = settings.pop("angles", None)
    return build_method(name, [f"{key}={value}" for key, value in settings.items()], angles, methods)


def _keys(kind: type, without: str | None = None) -> dict[str, Any]:
    """The fields of a dataclass and their types."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind) if f.name != without}


def _parse(key: str, text: str, kind: Any) -> Any:
    """A value of the annotated type: a number, true or false, one of several words, or none where that is allowed."""
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    words = [word for choice in choices if get_origin(choice) is Literal for word in get_args(choice)]
    if type(None) in choices and text.lower() == "none":
        return None
    if bool in choices and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text in words:
        return text
    for number in (int, float):
        if number in choices:
            try:
                return number(text)
            except ValueError:
                continue
    names = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    wanted = [*words, *(names[choice] for choice in choices if choice in names)]
    raise LongspanError(f"{key} is {' or '.join(wanted)}, not {text!r}{did_you_mean(text, words)}")
