"""The method that a manifest names, described without torch."""

from __future__ import annotations

from longspan import rope
from longspan.documents.manifest import Facts
from longspan.errors import DocumentError
from longspan.methods import METHODS, Method

_ANGLES = {kind.__name__: kind for kind in (rope.Angles, rope.PI, rope.NTK, rope.DynamicNTK, rope.YaRN)}


def method_of(facts: Facts) -> Method:
    """The method that a manifest names.

    Raises:
        DocumentError: there is no such method, or it cannot have these parameters.
    """
    kind, angles = METHODS.get(facts.method), dict(facts.angles)
    scaled = _ANGLES.get(str(angles.pop("name", None)))
    if kind is None or scaled is None:
        raise DocumentError(
            f"its method is {facts.method!r} under {facts.angles.get('name')!r}, which this longspan does not have; "
            "use the version of longspan that wrote it"
        )
    try:
        return kind(**facts.parameters, angles=scaled(**angles))
    except (TypeError, ValueError) as error:
        raise DocumentError(
            f"its method {facts.method} is not possible as its manifest states it: {error}; the manifest is damaged, "
            "read the text again"
        ) from None
