"""A headless Chromium, and a page in it that must ask nobody else, log no error and open no dialog of a script."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from support.chromium import find
from support.stub_server import Stub, serve

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


def pytest_collection_modifyitems(items):
    for item in items:
        if "/serve/browser/" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def expect():
    from playwright.sync_api import expect

    expect.set_options(timeout=15_000)
    return expect


@pytest.fixture
def tolerated() -> list[str]:
    """Parts of the console's errors that a test brings about."""
    return []


@pytest.fixture
def opened(chromium, tolerated):
    """Open a page at an address, with options of the browser's context."""
    wrong, contexts = [], []

    def open_page(url: str, **options):
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        host = urlsplit(url).netloc
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        local = ("data", "blob", "about")
        page.on(
            "request",
            lambda r: (
                None if urlsplit(r.url).scheme in local or urlsplit(r.url).netloc == host else wrong.append(r.url)
            ),
        )
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [what for what in wrong if not any(part in what for part in tolerated)] == []


@pytest.fixture
def stub():
    return Stub()


@pytest.fixture
def url(stub):
    server = serve(stub)
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    stub.reading.set()
    stub.writing.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def novel(stub) -> str:
    """A document of 2,000 sentences that name their number."""
    return stub.add(
        "book.txt", "".join(f"This is sentence {n} of the book, and nothing more is said in it.\n" for n in range(2000))
    )


@pytest.fixture
def page(opened, novel, url, expect):
    """The page, with a book of which nothing was asked."""
    page = opened(url)
    expect(page.locator("#page mark, #page .piece").first).to_be_attached()
    return page


@pytest.fixture
def ask(expect):
    """Ask, and wait for the answer."""

    def ask(page, question: str):
        expect(page.locator("#send")).to_be_enabled()  # until the page knows its documents, Enter asks nothing
        turn = page.locator(".turn").nth(page.locator(".turn").count())
        page.get_by_label("Question about the document").fill(question)
        page.keyboard.press("Enter")
        expect(turn).to_have_attribute("data-state", "done")
        return turn

    return ask
