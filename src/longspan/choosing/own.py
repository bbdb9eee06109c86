"""What a class says in its own body, which a class that derives from it does not inherit."""

from __future__ import annotations


def says_itself(one: object, name: str) -> bool:
    """Whether the very class of ``one`` sets ``name`` to True; one that derives from it may choose otherwise."""
    return vars(type(one)).get(name) is True
