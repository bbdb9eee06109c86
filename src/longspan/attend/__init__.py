"""Runs a method on a layer's queries, keys and values."""

from longspan.attend.attender import Attender

__all__ = ["Attender"]
