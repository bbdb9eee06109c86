"""A method by its name or class, with its parameters as keywords: ``extend(model, "dca", chunk_size=3)``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from longspan.errors import LongspanError, did_you_mean
from longspan.methods import METHODS, Method
from longspan.methods.parse import parse_method, split_spec
from longspan.rope import Angles

SETTINGS = ("window", "angles", "impl", "calibration", "kv_tier", "kv_dir", "length", "draft")
"""The keywords of ``extend`` that are not a method's."""


def configured(method: Any, parameters: Mapping[str, Any], given: Collection[str] = ()) -> Any:
    """A method or angles with these parameters; without any a name, a preset or an object as it is.

    Args:
        method: as ``extend`` takes it.
        parameters: of the method or of its angles, by name.
        given: the settings of ``extend`` that its caller gave.

    Raises:
        LongspanError: a parameter is unknown or invalid, has the name of a given setting, or the method takes none.
    """
    if not parameters and not isinstance(method, type):
        return method
    listed = ", ".join(parameters)
    if isinstance(method, type) and issubclass(method, (Method, Angles)):
        base, spelt = method(), dict[str, str]()
    elif isinstance(method, str) and (split := split_spec(method))[0] in METHODS:
        base, spelt = parse_method(method), split[1]
    elif isinstance(method, (Method, Angles)):
        name = type(method).__name__
        raise LongspanError(f"{listed}: {method} has its parameters already; pass {name}({listed}=...) in its place")
    elif method == "auto" or (isinstance(method, str) and method.endswith(".json")):
        raise LongspanError(f"{listed}: {method!r} states the parameters itself; name a method to set them")
    else:
        return method  # none, which whoever takes it says
    name = getattr(base, "name", type(base).__name__)
    own = {field.name for field in fields(base)} - {"angles"}
    inner = {field.name for field in fields(base.angles)} - own if isinstance(base, Method) else set[str]()
    for key in parameters:
        if key not in own | inner:
            known = sorted(own | inner)
            raise LongspanError(
                f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}, and extend itself has "
                f"{', '.join(SETTINGS)}{did_you_mean(key, [*known, *SETTINGS])}"
            )
        if key in spelt:
            raise LongspanError(f"{method!r}: {key} is set twice, in the name and as a keyword; leave one out")
    if parameters and (both := sorted(own & set(given))):
        call = f"longspan.{type(base).__name__}({', '.join(f'{key}={value!r}' for key, value in parameters.items())}"
        raise LongspanError(
            f"{both[0]} is a setting of extend and a parameter of {name}, so beside {listed} it could be either; pass "
            f"an object: {call}) with {both[0]}= of extend, or {call}, {both[0]}=...)"
        )
    more = {key: value for key, value in parameters.items() if key in own}
    if isinstance(base, Method):
        more["angles"] = replace(base.angles, **{key: parameters[key] for key in parameters if key in inner})
    return replace(base, **more)
