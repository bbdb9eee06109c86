"""What is imported when: torch and transformers where something needs them, and not before."""

from __future__ import annotations

import pytest

import longspan
from support.loaded_modules import loaded

COMMANDS = [
    "demo",
    "generate",
    "methods",
    "inspect",
    "doctor",
    "calibrate",
    "analyze",
    "eval",
    "reproduce",
    "serve",
    "fetch",
    "models",
    "tune",
    "read",
    "ask",
    "chat",
    "documents",
    "verify",
]


def test_importing_the_package_imports_no_other():
    assert not loaded("import longspan") & {"torch", "transformers", "numpy", "safetensors", "rich", "typer"}


@pytest.mark.parametrize(
    "args", [["--help"], ["-h"], ["--version"], ["methods"], ["methods", "--json"], ["models"], ["eval", "--list"],
             *([name, "--help"] for name in COMMANDS)],
)  # fmt: skip
def test_what_computes_nothing_loads_neither(args):
    got = loaded(f"from longspan.cli import main; main({args!r})")
    assert not got & {"torch", "transformers", "numpy", "safetensors", "fastapi", "openai", "uvicorn"}


def test_the_entry_point_loads_nothing_but_the_standard_library():
    assert not loaded("from longspan.cli import main") & {"torch", "transformers", "typer", "rich", "click"}


@pytest.mark.parametrize("name", ["METHODS", "DCA", "LongHeads", "YaRN", "LongspanError"])
def test_a_method_is_described_without_torch(name):
    assert "torch" not in loaded(f"import longspan; repr(longspan.{name})")


@pytest.mark.parametrize("name", ["Calibration", "bundled_calibration"])
def test_what_needs_no_transformers_does_not_load_it(name):
    assert "transformers" not in loaded(f"import longspan; longspan.{name}")


def test_every_name_is_there():
    assert all(getattr(longspan, name) is not None for name in longspan.__all__)
    assert set(longspan.__all__) <= set(dir(longspan))
    with pytest.raises(AttributeError, match="no attribute 'extand'"):
        longspan.extand  # noqa: B018
    space: dict[str, object] = {}
    exec("from longspan import *", space)
    assert set(longspan.__all__) <= space.keys()


def test_names_come_from_where_they_are_said_to():
    import ast
    from pathlib import Path

    tree = ast.parse(Path(longspan.__file__).read_text())
    stated = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert stated - {"annotations", "import_module", "TYPE_CHECKING", "Any", "__version__"} == set(longspan.__all__)
    assert set(longspan._MODULE_OF) == set(longspan.__all__)
