"""The documentation as it is read: how long its pages are, whether tables fit, what axe finds, what a search finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import chromium
from support.site import ROOT, build, served

pytestmark = pytest.mark.browser

WIDTH, PHONE, MOST = 1366, 390, 8000
# What a table has beyond its room, and where it begins.
WIDER = """() => [...document.querySelectorAll("table")].map((table) => {
    const room = table.closest(".md-typeset__scrollwrap") || table.parentElement;
    return [room.scrollWidth - room.clientWidth, table.innerText.slice(0, 40)];
}).filter(([more]) => more > 0)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install --group docs")
    folder = tmp_path_factory.mktemp("site")
    ran = build(ROOT, folder)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    with served(site) as url:
        yield url


@pytest.fixture(scope="module")
def pages(site) -> list[str]:
    found = sorted(page.parent.relative_to(site).as_posix() for page in site.rglob("index.html"))
    assert len(found) > 60
    return [f"{name}/" if name != "." else "" for name in found]


@contextmanager
def opened(**options: Any) -> Iterator[Any]:
    """A page of Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        try:
            yield browser.new_context(reduced_motion="reduce", **options).new_page()
        finally:
            browser.close()


def test_no_page_is_long_and_no_table_scrolls_sideways(address, pages):
    long, wide = {}, {}
    with opened(viewport={"width": WIDTH, "height": 768}) as page:
        for name in pages:
            page.goto(address + name)
            high = page.evaluate("document.documentElement.scrollHeight")
            if high > MOST and not name.startswith("api/longspan"):  # those are references by letter
                long[name] = high
            if found := page.evaluate(WIDER):
                wide[name] = found
    assert long == {} and wide == {}


def test_no_page_scrolls_sideways_on_a_phone(address, pages):
    with opened(viewport={"width": PHONE, "height": 844}) as page:
        wide = {}
        for name in pages:
            page.goto(address + name)
            if (reached := page.evaluate("document.documentElement.scrollWidth")) > PHONE:
                wide[name] = reached
    assert wide == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(address, pages, scheme):
    from axe_playwright_python.sync_playwright import Axe

    found, shown = {}, {"light": "default", "dark": "slate"}[scheme]
    with opened(viewport={"width": WIDTH, "height": 768}, color_scheme=scheme) as page:
        for name in pages:
            page.goto(address + name)
            page.wait_for_selector(f'body[data-md-color-scheme="{shown}"]')
            only = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}  # the rest is the same in both
            for one in Axe().run(page, options=only).response["violations"]:
                found[name, one["id"]] = [node["html"][:120] for node in one["nodes"]]
    assert found == {}


@pytest.mark.parametrize("word", ["gguf", "quantization", "docker", "ollama"])
def test_a_search_finds(address, word):
    with opened(viewport={"width": WIDTH, "height": 768}) as page:
        page.goto(address)
        page.get_by_role("textbox", name="Search").fill(word)
        page.wait_for_selector(".md-search-result__item")
        assert word in page.locator(".md-search-result__list").inner_text().lower()
