"""Model folders, a document, and a way to run the program, for the tests of its commands."""

import pytest

from longspan.bundled import heldout_text
from support.command_line import folder, no_hub, no_window, not_rope, run  # noqa: F401


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("books") / "book.txt"
    path.write_text(heldout_text()[:3_000], encoding="utf-8")
    return path


@pytest.fixture
def document(run, folder, book, tmp_path):  # noqa: F811
    method = "longheads:score=bounds"  # whose index a document holds
    where = "--model", folder, "--out", tmp_path / "book.longspan", "--method", method
    ran = run("read", book, *where, "--device", "cpu", "--no-check")
    assert ran.code == 0 and ran.out == f"{tmp_path / 'book.longspan'}\n", ran.err
    assert "tokens under longheads:" in ran.err
    return tmp_path / "book.longspan"
