"""What differs between the releases that pyproject.toml allows, where a test asks for it."""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

TRANSFORMERS = Version(version("transformers")).release[:2]
