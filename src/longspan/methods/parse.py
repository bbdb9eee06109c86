"""Methods as text: ``key=value`` settings, and specs in one line, for example ``dca:chunk_size=256``."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
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
    """Build a method from its name and ``key=value`` settings of its parameters or its angles' parameters.

    Args:
        name: a key of ``methods``.
        settings: ``key=value`` each.
        angles: a key of ``ANGLES``; None keeps the method's default angles.
        methods: the known methods.
        also: other names that the caller accepts, listed in the error for an unknown name.

    Raises:
        LongspanError: the method, the angles or a parameter is unknown, or a value is invalid.
    """
    if name not in methods:
        raise LongspanError(no_method(name, also, methods))
    if angles is not None and angles not in ANGLES:
        raise LongspanError(
            f"unknown angles {angles!r}; choose one of {', '.join(ANGLES)}{did_you_mean(angles, ANGLES)}"
        )
    cls = methods[name]
    base_angles = cls().angles if angles is None else ANGLES[angles]()
    method_types, angle_types = _types(cls, without="angles"), _types(type(base_angles))
    method_kwargs: dict[str, Any] = {}
    angle_kwargs: dict[str, Any] = {}
    for key, value in _split(settings, name).items():
        if key in method_types:
            method_kwargs[key] = _parse(key, value, method_types[key])
        elif key in angle_types:
            angle_kwargs[key] = _parse(key, value, angle_types[key])
        else:
            known = [*method_types, *angle_types]
            raise LongspanError(
                f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}{did_you_mean(key, known)}"
            )
    try:
        return cls(**method_kwargs, angles=replace(base_angles, **angle_kwargs))
    except ValueError as error:
        raise LongspanError(str(error)) from error


def no_method(name: str, also: Sequence[str] = (), methods: Mapping[str, type[Method]] = METHODS) -> str:
    """The message for an unknown method: all known names, including ``also``, and the most similar one."""
    known = [*methods, *also]
    return f"unknown method {name!r}; choose one of {', '.join(known)}{did_you_mean(name, known)}"


def written(method: Method) -> str:
    """The spec of a method, the inverse of ``parse_method``: its name and all parameters that are not at their default.

    Tables, pictures and messages label methods with it, so equal labels are equal methods.
    """
    default = type(method)()
    settings = _differing(method, default, without="angles")
    angles = method.angles
    if type(angles) is not type(default.angles):
        settings["angles"] = next((name for name, cls in ANGLES.items() if type(angles) is cls), "none")
    settings |= _differing(angles, default.angles if type(angles) is type(default.angles) else type(angles)())
    return method.name + (":" + ",".join(f"{key}={value}" for key, value in settings.items()) if settings else "")


def _differing(one: Any, other: Any, without: str | None = None) -> dict[str, str]:
    """The fields in which two dataclasses differ, as text that ``_parse`` reads."""
    names = [f.name for f in fields(one) if f.name != without and getattr(one, f.name) != getattr(other, f.name)]
    return {name: _text(getattr(one, name)) for name in names}


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) and not value.is_integer() else f"{value}".removesuffix(".0")


def split_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,key=value`` into the name and its settings, both as text.

    Raises:
        LongspanError: a setting is not ``key=value``, or a key is set twice.
    """
    name, colon, rest = spec.partition(":")
    if not name.strip() or (colon and not rest.strip()):
        raise LongspanError(f"{spec!r}: a method must be written as name or name:key=value,key=value")
    return name.strip(), _split(rest.split(",") if colon else (), repr(spec))


def _split(settings: Iterable[str], of: str) -> dict[str, str]:
    """Settings ``key=value`` by key; ``of`` is what errors name."""
    values: dict[str, str] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not (key and equals and value):
            raise LongspanError(f"{of}: {setting!r} is not key=value")
        key = key.replace("-", "_")
        if key in values:
            raise LongspanError(f"{of}: {key} is set twice")
        values[key] = value
    return values


def parse_method(spec: str, methods: Mapping[str, type[Method]] = METHODS) -> Method:
    """Build a method from ``name:key=value,…``; the key ``angles`` sets scaled angles (``dca:angles=yarn``).

    Raises:
        LongspanError: the spec has a syntax error, an unknown name, or an invalid value.
    """
    name, settings = split_spec(spec)
    angles = settings.pop("angles", None)
    return build_method(name, [f"{key}={value}" for key, value in settings.items()], angles, methods)


def _types(cls: type, without: str | None = None) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.name != without}


def _parse(key: str, text: str, annotation: Any) -> Any:
    """The value of a text under a type annotation: a number, a boolean, a word of a ``Literal``, or None."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
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
    names = {int: "an integer", float: "a number", bool: "true or false", type(None): "none"}
    expected = [*words, *(names[choice] for choice in choices if choice in names)]
    raise LongspanError(f"{key} must be {' or '.join(expected)}, not {text!r}{did_you_mean(text, words)}")
