"""What differs between the releases that pyproject.toml allows, where a test asks for it."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version

TRANSFORMERS = Version(version("transformers")).release[:2]
needs_narrow_columns = pytest.mark.skipif(
    Version(version("rich")).release < (14, 3), reason="rich before 14.3 cuts words at 40 columns"
)
