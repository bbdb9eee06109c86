"""For everybody: names and landmarks, contrast, keyboard alone, small screens, dark and light."""

from __future__ import annotations

from itertools import pairwise

import pytest

WIDTHS = {"phone": (360, 740), "tablet": (820, 1100), "desktop": (1440, 900)}
NAMED = {
    "button",
    "textbox",
    "slider",
    "link",
    "checkbox",
    "spinbutton",
    "dialog",
    "region",
    "navigation",
    "progressbar",
    "article",
}

# All text that is seen, with its contrast to what is behind it. A canvas says what mixed colours are.
CONTRAST = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const over = (layers) => {
        canvas.fillStyle = "#fff";
        canvas.fillRect(0, 0, 1, 1);
        for (const layer of layers) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (rgb) => {
        const [r, g, b] = rgb.map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        const at = node.parentElement;
        if (!node.data.trim() || !at.checkVisibility() || at.closest(":disabled, .hidden, .skip")) continue;
        const layers = [];
        for (let x = at; x; x = x.parentElement) {
            layers.unshift(getComputedStyle(x).backgroundColor);
            if (x.tagName === "DIALOG") break;
        }
        const [a, b] = [light(over(layers)), light(over([...layers, getComputedStyle(at).color]))];
        found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), at.tagName, node.data.trim().slice(0, 40)]);
    }
    return found;
}"""


def low_contrast(page) -> list:
    found = page.evaluate(CONTRAST)
    assert len(found) > 5
    return [one for one in found if one[0] < 4.5]


def nameless(page) -> list:
    """What can be used, or is a part of the page, and has no name in the tree that screen readers get."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED]
    assert len(shown) > 8
    return [node for node in shown if not node.get("name", {}).get("value", "").strip()]


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
    assert low_contrast(page) == [] and sideways(page) == []
    stub.answer = f"{'Averylongword' * 20} and more. " + "Some more words. " * 10
    turn = ask(page, "What " + "is " * 60 + "it about? " + "Averylongword" * 10)
    stub.refusals.append(("chat", 400, "the prompt is too long " * 10))
    page.get_by_label("Question about the document").fill("And then?")
    page.keyboard.press("Enter")
    expect(page.locator("#conversation [role=alert]")).to_be_visible()
    assert low_contrast(page) == [] and nameless(page) == [] and sideways(page) == []
    turn.locator(".passage").nth(1).click()
    expect(page.locator("#page mark.here")).to_be_in_viewport()
    assert low_contrast(page) == [] and nameless(page) == [] and sideways(page) == []
    if width != "desktop":
        page.get_by_role("navigation").get_by_role("button", name="Documents").click()
    expect(page.locator(".doc")).to_have_count(3)
    expect(page.locator(".doc").first).to_be_visible()
    assert low_contrast(page) == [] and nameless(page) == [] and sideways(page) == []


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
    assert low_contrast(page) == []


@pytest.mark.parametrize("opener", ["Keys", "Rename book.txt", "Delete book.txt"])
def test_dialogs_have_names_and_contrast(page, expect, scheme, opener):
    page.emulate_media(color_scheme=scheme)
    page.get_by_role("button", name=opener).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert low_contrast(page) == []
    session = page.context.new_cdp_session(page)
    nodes = [node for node in session.send("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    controls = [node for node in nodes if node["role"]["value"] in NAMED]
    assert len(controls) >= 2 and all(node["name"]["value"] for node in controls)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name=opener)).to_be_focused()


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
            const name = x.id || x.dataset.do || x.dataset.token || x.className;
            return [name, outlineStyle !== "none" && parseFloat(outlineWidth) >= 2, x.checkVisibility()];
        }""")
        if at is None or at[0] in [name for name, *_ in seen]:
            break
        seen.append(at)
    assert [name for name, outlined, visible in seen if not (outlined and visible)] == []
    names = [name for name, *_ in seen]
    wanted = ["theme", "help", "add", "doc", "rename", "delete", "choose", "new", "0", "link", "passage"]
    wanted += ["question", "most", "send", "attended-less", "bar", "page"]
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
    dialog = page.get_by_role("dialog", name="Keys")
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


def test_what_is_touched_is_large_enough(opened, stub, novel, url, ask):
    page = opened(url, viewport={"width": 360, "height": 740}, has_touch=True)
    ask(page, "Tell me")
    touched = page.locator("button:visible:not(.link), input:visible, textarea:visible")
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
