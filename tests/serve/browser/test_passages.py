"""What the answer attended to: listed, coloured, pointed at by mouse and keyboard, and found in the bar."""

from __future__ import annotations

import pytest


@pytest.fixture
def turn(page, ask, expect):
    turn = ask(page, "What is it about?")
    expect(page.locator("#page mark.here").first).to_be_in_viewport()
    return turn


def top(stub, novel) -> tuple[int, int]:
    """The part that was looked at most."""
    first = stub.looked(novel, stub.tokens("What is it about?"))["answer"][0]
    return first["start"], first["end"]


def test_the_answer_shows_where_it_looked_most(page, stub, novel, turn, expect):
    start, end = top(stub, novel)
    mark = page.locator("#page mark[data-level='5']")
    expect(mark).to_have_attribute("data-start", str(start))
    expect(mark).to_have_text(stub.texts[novel][start:end], use_inner_text=False)
    expect(turn.locator(".passage")).to_have_count(4)
    expect(page.locator("#about")).to_have_text("What the answer attended to, not proof.")
    assert page.locator("#bar i[data-level='5']").count() in (1, 2)


def test_click_on_a_passage(page, stub, novel, turn, expect):
    second = turn.locator(".passage").nth(1)
    start = second.get_attribute("data-start")
    second.click()
    expect(page.locator(f"#page mark[data-start='{start}']")).to_be_in_viewport()
    expect(page.locator("#page mark.here")).to_have_attribute("data-start", start)
    expect(page.locator("#about")).to_contain_text("Attended to by 17 of the answer's 17 tokens")
    expect(turn.locator("[data-token].lit")).to_have_count(17)


def test_point_at_a_token_with_the_mouse(page, turn, expect):
    token = turn.locator("[data-token='3']")
    token.hover()
    expect(token).to_have_class("on")
    expect(page.locator("#page mark")).to_have_count(1)  # the stub's token attends to one place
    expect(page.locator("#page mark")).to_be_in_viewport()
    expect(page.locator("#bar i:not([data-level='0'])")).to_have_count(1)
    expect(turn.locator("h4")).to_contain_text("by the whole answer")
    page.get_by_role("heading", name="Conversation").hover()
    expect(page.locator("#bar i:not([data-level='0'])")).to_have_count(4)


def test_walk_over_the_tokens_with_the_keyboard(page, turn, expect):
    page.locator("body").click(position={"x": 5, "y": 5})
    page.keyboard.press("a")
    expect(turn.locator("[data-token='0']")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(turn.locator("[data-token='3']")).to_be_focused()
    expect(turn.locator("h4")).to_contain_text("by “is”")
    expect(turn.locator(".passage")).to_have_count(1)
    told = "Token 4 of 17: 1 passage, the first 20× as much as under a neutral question."
    expect(page.get_by_role("status")).to_have_text(told)
    expect(page.locator("#page mark")).to_be_in_viewport()
    page.keyboard.press("End")
    expect(turn.locator("[data-token='16']")).to_be_focused()
    page.keyboard.press("Escape")
    expect(turn.locator("h4")).to_contain_text("by the whole answer")


def test_a_part_of_the_text_names_its_tokens(page, stub, novel, turn, expect):
    turn.locator(".passage").nth(2).click()
    chosen = page.locator("#page mark.here")
    chosen.click()
    start = int(chosen.get_attribute("data-start"))
    looked = stub.looked(novel, stub.tokens("What is it about?"))["tokens"]
    tokens = [n for n, token in enumerate(looked) if any(p["start"] == start for p in token["passages"])]
    assert 0 < len(tokens) < 17
    lit = turn.locator("[data-token].lit")
    assert [int(one.get_attribute("data-token")) for one in lit.all()] == tokens


def test_click_on_the_bar(page, stub, novel, turn, expect):
    box = page.get_by_role("slider").bounding_box()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2)
    text = stub.texts[novel]
    middle = text[len(text) // 2 :].partition("\n")[2].partition("\n")[0]
    expect(page.get_by_text(middle)).to_be_in_viewport()
    lit = page.locator("#bar i[data-level='5']").first.bounding_box()
    page.mouse.click(lit["x"] + lit["width"] / 2, box["y"] + box["height"] / 2)
    start, _ = top(stub, novel)
    expect(page.locator(f"#page mark[data-start='{start}']")).to_be_in_viewport()


def test_the_bar_by_keyboard(page, stub, novel, turn, expect):
    bar = page.get_by_role("slider", name="Place in the document")
    bar.focus()
    page.keyboard.press("Home")
    expect(page.get_by_text("This is sentence 0 of")).to_be_in_viewport()
    expect(bar).to_have_attribute("aria-valuenow", "0")
    page.keyboard.press("End")
    expect(page.get_by_text("This is sentence 1999 of")).to_be_in_viewport()
    assert int(bar.get_attribute("aria-valuenow")) > 0.97 * len(stub.texts[novel])
    page.keyboard.press("PageDown")
    expect(page.get_by_text("This is sentence 1795 of")).to_be_in_viewport()
    assert 0.87 < int(bar.get_attribute("aria-valuenow")) / len(stub.texts[novel]) < 0.9
    assert "of 132,890" in bar.get_attribute("aria-valuetext")


def test_step_through_the_passages_by_their_lift(page, stub, novel, turn, expect):
    found = stub.looked(novel, stub.tokens("What is it about?"))["answer"]
    less, more = (page.get_by_role("button", name=f"attended to {how}") for how in ("less", "more"))
    expect(more).to_be_disabled()
    for n, part in enumerate(found[1:4], 2):
        page.get_by_role("slider").focus()
        page.keyboard.press("]")
        expect(page.locator("#which")).to_have_text(f"{n} of 4")
        expect(page.locator("#page mark.here")).to_have_attribute("data-start", str(part["start"]))
        expect(page.locator("#page mark.here")).to_be_in_viewport()
    more.click()
    expect(page.locator("#which")).to_have_text("3 of 4")
    less.click()
    expect(less).to_be_disabled()


def test_another_answers_passages_take_the_place_of_these(page, stub, turn, ask, expect):
    stub.answer = "Short."
    second = ask(page, "And now?")
    expect(second.locator(".passage")).to_have_count(3)
    expect(page.locator("#bar i:not([data-level='0'])")).to_have_count(3)
    turn.locator("[data-token='3']").click()
    expect(page.locator("#bar i:not([data-level='0'])")).to_have_count(1)
    expect(second.locator("[data-token].on")).to_have_count(0)


@pytest.mark.parametrize(
    ("whole", "chooses", "said"),
    [(10_000, True, "whole text"), (None, False, "whole text"), (512, True, "head chose"), (512, False, "the last")],
)
def test_how_much_of_the_text_was_in_view(opened, stub, novel, url, ask, expect, whole, chooses, said):
    """And where the attention went is shown although nothing has more of it than under a neutral question."""
    stub.whole, stub.chooses, stub.lift = whole, chooses, 0.01
    page = opened(url)
    turn = ask(page, "What is it about?")
    expect(turn.locator(".foot")).to_contain_text(said)
    expect(turn.locator(".looked")).to_contain_text("No more than under a neutral question.")
    expect(page.locator("#page mark[data-level='5']").first).to_be_in_viewport()


def test_what_the_answer_says_word_for_word_comes_first(page, stub, novel, ask, expect):
    last = stub.looked(novel, ["x"] * 5)["answer"][-1]
    number = last["text"].split("sentence ")[1].split()[0]
    stub.answer = f"It is {number} of them"
    turn = ask(page, "Which sentence?")
    expect(turn.locator(".passage").first).to_contain_text(f"sentence {number} of")
    expect(page.locator("#page mark.here")).to_have_attribute("data-start", str(last["start"]))


def test_search_in_the_text(page, stub, novel, turn, expect):
    page.keyboard.press("Tab")
    page.locator("body").evaluate("() => document.activeElement.blur()")
    page.keyboard.press("f")
    field = page.get_by_label("Search in the text")
    field.fill("sentence 100")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("11 places with “sentence 100”.")
    here = page.locator("#page mark.here")
    for n, start in enumerate([stub.texts[novel].index("sentence 100 "), stub.texts[novel].index("sentence 1000 ")], 1):
        expect(page.locator("#which")).to_have_text(f"{n} of 11")
        expect(here).to_have_attribute("data-start", str(start))
        expect(here).to_be_in_viewport()
        page.keyboard.press("Enter")
    turn.locator("[data-token='3']").hover()  # what is found stays coloured
    page.get_by_role("button", name="Place before").click()
    expect(page.locator("#which")).to_have_text("2 of 11")
    turn.locator(".passage").nth(1).click()
    expect(page.locator("#which")).to_have_text("2 of 4")
    field.fill("nowhere")
    page.keyboard.press("Enter")
    expect(page.locator("#about")).to_have_text("0 places with “nowhere”.")
    expect(page.locator("#page mark")).to_have_count(0)
    page.keyboard.press("Escape")
