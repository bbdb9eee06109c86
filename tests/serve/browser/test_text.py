"""The text itself: text and never HTML, whatever it holds, and a few pieces of it however long it is."""

from __future__ import annotations

HOSTILE = """<h1 id="evil">Title</h1> <script>alert("script")</script> <img src=x onerror="alert('image')">
<iframe src="javascript:alert(1)"></iframe> <a href="javascript:alert(2)">link</a> &amp; &lt; <!-- comment -->
</div></section><style>* { display: none }</style> <svg onload=alert(3)> {{constructor.constructor('alert(4)')()}}
"""


def test_a_document_of_html_and_scripts_shows_as_text(opened, stub, url, ask, expect):
    name = '<img src=x onerror="alert(5)">.txt'
    stub.add(name, HOSTILE * 40)
    stub.answer = HOSTILE
    page = opened(url)
    turn = ask(page, "<b onclick=alert(6)>What?</b>")
    expect(page.get_by_role("region", name="Text of the document")).to_contain_text('<script>alert("script")</script>')
    shown = page.locator("#page").text_content()
    assert len(shown) > 2 * len(HOSTILE) and (HOSTILE * 40).startswith(shown)
    assert turn.locator(".answer").text_content() == HOSTILE.lstrip()
    expect(turn.locator(".question")).to_have_text("<b onclick=alert(6)>What?</b>")
    expect(page.locator(".doc .name")).to_have_text(name)
    page.reload()
    expect(page.locator(".doc .name")).to_have_text(name)
    expect(page.locator(".passage .words").first).to_contain_text("<")
    assert (
        page.locator("img, iframe, svg, #evil, .panel script, .panel style, .panel a, .panel b:not(#bar b)").count()
        == 0
    )


def test_an_error_of_html_and_scripts_shows_as_text(opened, stub, url, tolerated, expect):
    """Of an answer, of a reading, of the text, and of an upload, which the error names."""
    tolerated += ["500", "404"]
    stub.add("book.txt", "Nothing more is said in it.\n" * 40)
    failed = stub.add("failed.txt", "x", status="failed")
    stub.documents[failed]["error"] = HOSTILE
    stub.refusals += [("/completions", 500, HOSTILE), ("/text", 404, HOSTILE)]
    page = opened(url)
    words = " ".join(HOSTILE.split())
    page.locator(".doc", has_text="book.txt").locator(".name").click()
    expect(page.locator("#send")).to_be_enabled()
    page.get_by_label("Question about the document").fill("What?")
    page.keyboard.press("Enter")
    turn = page.locator(".turn").first
    expect(turn).to_have_attribute("data-state", "failed")
    expect(turn.locator(".error")).to_contain_text(words)
    page.locator(".doc", has_text="failed.txt").locator(".name").click()
    expect(page.locator("#page + .error, .error", has_text="{{constructor.constructor").first).to_be_attached()
    stub.refusals += [("/v1/documents", 500, HOSTILE)]
    page.locator("input[type=file]").set_input_files(
        {"name": "<img src=x onerror=alert(7)>.txt", "mimeType": "text/plain", "buffer": b"words"}
    )
    expect(page.locator("#banner-words")).to_contain_text(words)
    assert page.locator("img, iframe, svg, #evil, .panel script, #banner script, .error b").count() == 0


def test_a_long_text_is_loaded_in_pieces(opened, stub, url, ask, expect):
    """Of 12 million characters a few thousand are on the page, wherever one looks."""
    lines = 170_000
    novel = stub.add(
        "long.txt",
        "".join(
            f"Line {n:>9} of a text that no page should hold as a whole, since it is long.\n" for n in range(lines)
        ),
    )
    asked = []
    page = opened(url)
    page.on("request", lambda request: asked.append(request.url) if "/text?" in request.url else None)
    turn = ask(page, "What is it about?")
    expect(page.locator("#page mark.here")).to_be_in_viewport()
    turn.locator(".passage").nth(1).click()
    expect(
        page.locator(f"#page mark[data-start='{turn.locator('.passage').nth(1).get_attribute('data-start')}']")
    ).to_be_in_viewport()
    bar = page.get_by_role("slider")
    bar.focus()
    for key in ("End", "Home", "PageUp", "End"):
        page.keyboard.press(key)
    expect(page.get_by_text(f"Line {lines - 1:>9} of")).to_be_in_viewport()
    assert page.locator("#page").evaluate("x => x.textContent.length") < 60_000
    assert len(stub.texts[novel]) > 12_000_000 and len(asked) < 60


def test_scrolling_loads_what_comes_and_keeps_its_place(page, stub, novel, expect):
    box = page.locator("#page")
    box.hover()
    reached = page.locator("#page", has_text="This is sentence 900 of")
    for _ in range(80):
        page.mouse.wheel(0, 2500)
        page.wait_for_timeout(30)
        if reached.count():
            break
    expect(reached).to_be_attached()
    expect(page.locator("#page .piece")).not_to_have_count(0)
    assert page.locator("#page .piece").count() <= 9
    shown = box.text_content()
    assert shown in stub.texts[novel], "what is on the page is one part of the text, without a gap"
    for _ in range(120):
        page.mouse.wheel(0, -2500)
        page.wait_for_timeout(30)
        if box.evaluate("x => x.scrollTop") == 0 and "sentence 0 of" in box.text_content():
            break
    expect(page.get_by_text("This is sentence 0 of")).to_be_in_viewport()
    assert box.text_content() in stub.texts[novel]


def test_characters_are_counted_as_the_server_counts_them(opened, stub, url, ask, expect):
    """Signs outside of the basic plane are one character to the server and two to JavaScript."""
    stub.add("signs.txt", "".join(f"𝔖entence {n} 🙂 with sîgns, 漢字 and עברית.\n" for n in range(1500)))
    page = opened(url)
    turn = ask(page, "What is it about?")
    (novel,) = stub.documents
    first = turn.locator(".passage").first
    start = int(first.get_attribute("data-start"))
    mark = page.locator(f"#page mark[data-start='{start}']")
    expect(mark).to_be_in_viewport()
    assert mark.text_content() == stub.texts[novel][start : int(mark.get_attribute("data-end"))]


def test_a_text_that_cannot_be_had_says_why(opened, stub, novel, url, tolerated, expect):
    tolerated.append("404")
    stub.refusals += [("/text", 404, "the text of this document was not kept")] * 3
    page = opened(url)
    expect(page.get_by_role("region", name="Text of the document")).to_have_text(
        "the text of this document was not kept"
    )


def test_a_text_is_cut_where_parts_begin_and_end(page):
    run = "async (parts) => (await import('/page/looked.js')).cut(parts, 100, 200)"
    parts = [
        {"start": 199, "end": 300, "lift": 1.5},
        {"start": 90, "end": 120, "lift": 2},
        {"start": 120, "end": 130, "lift": 3},
    ]
    got = [(one["start"], one["end"], one["lift"]) for one in page.evaluate(run, parts)]
    assert got == [(100, 120, 2), (120, 130, 3), (130, 199, 0), (199, 200, 1.5)]


def test_every_part_lights_its_place_in_the_bar(page):
    run = "async ([parts, n, bins]) => (await import('/page/looked.js')).histogram(parts, n, bins)"
    parts = [
        {"start": 0, "end": 10, "lift": 2},
        {"start": 15, "end": 31, "lift": 3},
        {"start": 99, "end": 100, "lift": 1},
    ]
    assert page.evaluate(run, [parts, 100, 10]) == [2, 3, 3, 3, 0, 0, 0, 0, 0, 1]
