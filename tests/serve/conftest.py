"""Servers of the bundled model."""

from __future__ import annotations

import logging
from functools import partial

import pytest

import longspan
from longspan.bundled import heldout_text, load_bundled
from longspan.documents import fingerprint
from support.scripted import script
from support.serving import NEEDLE, Served
from support.templates import TOOLS, with_template


@pytest.fixture(autouse=True, scope="session")
def remembered(tmp_path_factory):
    """Hashes of weights are remembered in a folder of the tests' own."""
    folder = tmp_path_factory.mktemp("remembered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "weights_of", partial(fingerprint.weights_of, cache=folder / "weights.json"))
        yield


@pytest.fixture
def quiet(caplog):
    """Fails where the server logs an error."""
    caplog.set_level(logging.WARNING)
    yield
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info], caplog.text


@pytest.fixture(scope="session")
def bundled():
    """The bundled model under LongHeads, and its tokenizer."""
    model, tokenizer = load_bundled()
    longspan.extend(model, "longheads:score=bounds")
    return model, tokenizer


@pytest.fixture(scope="session")
def book():
    """Four windows of prose with a pass key in it."""
    text = heldout_text()[:5_600]
    at = text.index("\n", 2_000)
    return text[:at] + NEEDLE + text[at:]


@pytest.fixture(scope="module")
def served(bundled, tmp_path_factory):
    """One server for the tests of a module."""
    server = Served(*bundled, tmp_path_factory.mktemp("documents"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def tool_tokenizer(bundled):
    """The tokenizer with a chat template that takes functions."""
    return with_template(bundled[1], TOOLS)


@pytest.fixture(scope="module")
def templated(bundled, tool_tokenizer, tmp_path_factory):
    """A server of a model with that template."""
    server = Served(bundled[0], tool_tokenizer, tmp_path_factory.mktemp("documents"), max_new_tokens=200)
    yield server
    server.close()


@pytest.fixture
def say(monkeypatch, tool_tokenizer):
    """Sets what every answer says from then on."""
    return script(monkeypatch, tool_tokenizer)


@pytest.fixture(scope="module")
def document(served, book):
    """The id of a document that is read."""
    return served.add(book)


@pytest.fixture
def start(bundled, tmp_path):
    """Starts servers with settings of their own."""
    servers = []

    def new(documents=None, **settings):
        place = tmp_path / "documents" if documents is None else documents
        servers.append(Served(*bundled, place, **settings))
        return servers[-1]

    yield new
    for server in servers:
        server.close()
