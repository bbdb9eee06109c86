"""For everybody: names and landmarks, contrast, keyboard alone, small screens, dark and light."""

from __future__ import annotations

from itertools import pairwise

import pytest

WIDTHS = {"phone": (360, 740), "tablet": (768, 1024), "desktop": (1280, 800)}
MARKDOWN = "Some **bold**, `code`, [a link](https://x.example).\n\n```py\nx = 1\n```\n\n|a|\n|-|\n|1|\n\n- one\n\n> two"


def findings(page) -> list:
    """What axe-core finds wrong: names, roles, landmarks, contrast and more."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response
    assert "color-contrast" in [one["id"] for one in found["passes"]]
    return [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found["violations"]]


def sideways(page) -> list:
    """What reaches beyond the screen."""
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    return page.evaluate("""() => [...document.querySelectorAll("body *")].filter((x) => {
        if (!x.checkVisibility() || x.closest(".hidden, .skip, .words, #bar")) return false;
        const { left, right, width } = x.getBoundingClientRect();
        return width > 1 && (right > innerWidth + 1 || left < -1);
    }).map((x) => `${x.tagName} ${x.id} ${x.className}`)""")


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.mark.parametrize("width", WIDTHS)
def test_contrast_names_and_no_sideways_scrolling(opened, stub, novel, url, ask, expect, tolerated, scheme, width):
    tolerated.append("400")
    stub.add("a-very-long-name-without-any-place-where-it-could-be-broken-into-two-lines.txt", "x", "ready")
    failed = stub.add("broken.pdf", "x")
    stub.documents[failed] |= {"status": "failed", "error": "broken.pdf is no PDF file"}
    size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
    page = opened(f"{url}#{novel}", viewport=size, color_scheme=scheme)
    expect(page.get_by_role("heading", name="Ask about this text")).to_be_visible()
    assert findings(page) == [] and sideways(page) == []
    stub.answer = f"{'Averylongword' * 20} and more. " + "Some more words. " * 10
    turn = ask(page, "What " + "is " * 60 + "it about? " + "Averylongword" * 10)
    stub.refusals.append(("chat", 400, "the prompt is too long " * 10))
    page.get_by_label("Question about the document").fill("And then?")
    page.keyboard.press("Enter")
    expect(page.locator("#conversation [role=alert]")).to_be_visible()
    assert findings(page) == [] and sideways(page) == []
    turn.locator(".passage").nth(1).click()
    expect(page.locator("#page mark.here")).to_be_in_viewport()
    assert findings(page) == [] and sideways(page) == []
    if width != "desktop":
        page.get_by_role("navigation").get_by_role("button", name="Documents").click()
    expect(page.locator(".doc")).to_have_count(3)
    expect(page.locator(".doc").first).to_be_visible()
    assert findings(page) == [] and sideways(page) == []


def test_every_level_of_colour_can_be_read(page, expect, scheme):
    page.emulate_media(color_scheme=scheme)
    page.evaluate("""() => {
        for (let level = 1; level <= 5; level++) {
            const mark = document.createElement("mark");
            mark.dataset.level = level;
            mark.textContent = `level ${level}`;
            document.getElementById("page").prepend(mark);
        }
    }""")
    expect(page.locator("mark")).to_have_count(5)
    assert (
        len(set(page.locator("mark").evaluate_all("all => all.map((x) => getComputedStyle(x).backgroundColor)"))) == 5
    )
    assert findings(page) == []


@pytest.mark.parametrize("opener", ["Shortcuts", "Rename book.txt", "Delete book.txt", "Delete the conversation"])
def test_dialogs(page, ask, expect, scheme, opener):
    page.emulate_media(color_scheme=scheme)
    ask(page, "Tell me")
    page.get_by_role("button", name=opener).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert findings(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name=opener)).to_be_focused()


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wrong_with_what_can_be_opened(opened, stub, novel, url, ask, scheme, width):
    stub.answer = MARKDOWN
    size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
    page = opened(url, viewport=size, color_scheme=scheme)
    ask(page, "What is it about?")
    page.get_by_role("button", name="New").click()
    turn = ask(page, "And now?")
    page.locator("summary").click()
    assert findings(page) == [] and sideways(page) == []
    turn.get_by_role("button", name="Edit").click()
    assert findings(page) == [] and sideways(page) == []
    if width == "phone":
        page.get_by_role("navigation").get_by_role("button", name="Text").click()
        assert findings(page) == [] and sideways(page) == []
    if width != "desktop":
        page.get_by_role("navigation").get_by_role("button", name="Documents").click()
    page.get_by_role("button", name="Chat without a text").click()
    assert findings(page) == [] and sideways(page) == []


def test_landmarks_and_headings(page, ask):
    ask(page, "Tell me")
    for role in ("banner", "main"):
        assert page.get_by_role(role).count() == 1
    for name in ("Documents", "book.txt", "Text of the document"):
        assert page.get_by_role("region", name=name, exact=True).count() == 1
    levels = [
        int(tag[1])
        for tag in page.locator("h1:visible, h2:visible, h3:visible, h4:visible").evaluate_all(
            "all => all.map((x) => x.tagName)"
        )
    ]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"


def test_the_keyboard_alone_reaches_everything_and_is_seen(page, ask, expect):
    ask(page, "Tell me")
    page.reload()
    expect(page.locator(".passage")).to_have_count(4)
    seen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        at = page.evaluate("""() => {
            const x = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(x);
            if (x === document.body) return null;
            const name = x.id || x.dataset.do || x.dataset.token || x.className || x.localName;
            return [name, outlineStyle !== "none" && parseFloat(outlineWidth) >= 2, x.checkVisibility()];
        }""")
        if at is None or at[0] in [name for name, *_ in seen]:
            break
        seen.append(at)
    assert [name for name, outlined, visible in seen if not (outlined and visible)] == []
    names = [name for name, *_ in seen]
    wanted = ["theme", "help", "add", "chat-alone", "doc", "rename", "delete", "choose", "new", "export", "drop-talk"]
    wanted += ["0", "copy", "again", "edit", "link", "passage", "question", "most", "send", "summary", "words"]
    wanted += ["attended-less", "bar", "page"]
    assert names[0].startswith("skip") and names[1:] == wanted


def test_the_skip_link(page, expect):
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="Skip to the question")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Question about the document")).to_be_focused()


def test_all_by_keyboard_from_document_to_passage(opened, stub, novel, url, expect):
    stub.add("second.txt", "Some other text. " * 200)
    page = opened(url)
    expect(page.locator(".doc")).to_have_count(2)
    for key in ("d", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(page.locator(".doc[aria-current]")).to_contain_text("book.txt")
    page.keyboard.press("/")
    page.keyboard.type("Where? And why d, a or t?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_attribute("data-state", "done")
    expect(page.locator(".question")).to_have_text("Where? And why d, a or t?")
    page.locator("body").evaluate("() => document.activeElement.blur()")
    for key in ("p", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    start = page.locator(".passage").nth(1).get_attribute("data-start")
    expect(page.locator("#page mark.here")).to_have_attribute("data-start", start)
    expect(page.locator("#page mark.here")).to_be_in_viewport()
    page.keyboard.press("t")
    expect(page.get_by_role("region", name="Text of the document")).to_be_focused()


def test_shortcuts_are_listed_and_letters_can_be_turned_off(page, expect):
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Shortcuts")
    for words in ("the question", "the tokens of the last answer", "attended to less", "stop the answer"):
        expect(dialog).to_contain_text(words)
    dialog.get_by_label("Letters work as shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    expect(page.locator(".piece").first).to_be_attached()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_dark_and_light(page, expect):
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(paper)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(paper)
    assert dark != light
    toggle = page.get_by_role("button", name="Dark")
    expect(toggle).to_have_attribute("aria-pressed", "false")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(paper) == dark
    page.reload()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(paper) == dark


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_touched_is_large_enough(opened, stub, novel, url, ask, width):
    page = opened(url, viewport=dict(zip(("width", "height"), WIDTHS[width], strict=True)), has_touch=True)
    ask(page, "Tell me")
    page.locator("summary").click()
    touched = page.locator("button:visible, input:visible, select:visible, textarea:visible, summary:visible")
    sizes = touched.evaluate_all("""all => all.map((x) => {
        const { width, height } = x.getBoundingClientRect();
        return [x.id || x.className, width, height];
    })""")
    assert len(sizes) > 6 and [one for one in sizes if min(one[1:]) < 24] == []


def test_the_text_follows_when_it_is_not_seen_yet(opened, stub, novel, url, ask, expect):
    """In one column the text is out of sight while the answer comes, and is at the right place once it is shown."""
    page = opened(url, viewport={"width": 360, "height": 740})
    ask(page, "Tell me")
    page.get_by_role("navigation").get_by_role("button", name="Text").click()
    expect(page.locator("#page mark.here")).to_be_in_viewport()
