"""The conversation: asked, streamed, stopped, kept, begun anew, and errors in plain words."""

from __future__ import annotations

import pytest


def test_ask_and_answer(page, stub, novel, ask, expect):
    turn = ask(page, "What is it about?")
    expect(turn.locator(".question")).to_have_text("What is it about?")
    expect(turn.locator(".answer")).to_have_text("".join(stub.tokens("What is it about?")))
    expect(turn.locator(".foot")).to_contain_text("1,000 of 1,004 tokens of the prompt were read before")
    (asked,) = stub.asked
    assert asked["document"] == novel and asked["passages"] is True and asked["stream"] is True
    assert asked["messages"] == [{"role": "user", "content": "What is it about?"}]
    assert asked["temperature"] == 0 and asked.keys().isdisjoint(("max_completion_tokens", "top_p", "seed", "stop"))


def test_the_answer_is_shown_while_it_is_written(page, stub, expect):
    stub.writing.clear()
    page.get_by_label("Question about the document").fill("Tell me")
    page.get_by_role("button", name="Ask", exact=True).click()
    turn = page.locator(".turn")
    expect(turn.locator(".answer")).to_contain_text("You asked “Tell me”")
    expect(turn.locator(".answer")).to_have_attribute("aria-busy", "true")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    stub.writing.set()
    expect(turn.locator(".answer")).to_contain_text("not a word.")
    expect(turn).to_have_attribute("data-state", "done")


def test_how_far_the_prompt_is_read_is_told(page, stub, expect):
    stub.writing.clear()
    stub.slow = True
    page.get_by_label("Question about the document").fill("Tell me")
    page.keyboard.press("Enter")
    expect(page.locator(".turn .foot")).to_have_text("Reading … 42%")
    stub.writing.set()
    expect(page.locator(".turn")).to_have_attribute("data-state", "done")


def test_the_answer_is_read_aloud_in_sentences(page, stub, ask, expect):
    stub.answer = "The first one. Then a second one! And the rest of it"
    ask(page, "Tell me")
    said = page.locator("#answering")
    expect(said).to_have_attribute("aria-live", "polite")
    assert said.locator("span").all_text_contents() == ["The first one. ", "Then a second one! ", "And the rest of it "]


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stop(page, stub, expect, how):
    stub.writing.clear()
    page.get_by_label("Question about the document").fill("Tell me")
    page.keyboard.press("Enter")
    turn = page.locator(".turn")
    expect(turn.locator(".answer")).to_contain_text("You asked")
    if how == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    expect(turn).to_contain_text("Stopped.")
    expect(turn.locator(".answer")).not_to_contain_text("not a word")
    stub.writing.set()
    turn.get_by_role("button", name="Ask again").click()
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator(".turn .answer")).to_contain_text("not a word.")


def test_the_next_question_brings_what_was_said(page, stub, ask):
    ask(page, "First?")
    ask(page, "Second?")
    roles = [(m["role"], m["content"]) for m in stub.asked[1]["messages"]]
    assert roles == [("user", "First?"), ("assistant", "".join(stub.tokens("First?"))), ("user", "Second?")]


def test_a_reload_keeps_the_conversation_with_its_passages(page, ask, expect):
    ask(page, "First?")
    ask(page, "Second?")
    page.reload()
    expect(page.locator(".question")).to_have_text(["First?", "Second?"])
    expect(page.locator(".turn").last.locator(".passage")).to_have_count(4)
    expect(page.locator("#page mark[data-level='5']").first).to_be_visible()
    page.locator(".turn").first.locator("[data-token='2']").click()
    expect(page.locator(".turn").first.locator("h4")).to_contain_text("by ““First?”,”")


def test_a_reload_in_the_middle_keeps_what_was_written(page, stub, expect):
    stub.writing.clear()
    page.get_by_label("Question about the document").fill("Tell me")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_contain_text("You asked")
    page.reload()
    expect(page.locator(".question")).to_have_text("Tell me")
    expect(page.locator(".turn")).to_have_attribute("data-state", "stopped")


def test_a_new_conversation(page, ask, expect):
    ask(page, "First?")
    page.get_by_role("button", name="New").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_label("Question about the document")).to_be_focused()
    expect(page.locator("#page mark")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("heading", name="Ask about this text")).to_be_visible()


@pytest.mark.parametrize(
    ("status", "message", "shown"),
    [
        (429, "queue full", "The server is busy. Try again in 3 s."),
        (400, "the prompt has 9,000 tokens, and 8,192 are the limit", "the prompt has 9,000 tokens, and 8,192 are"),
        (500, "out of memory", "The server failed: out of memory"),
    ],
)
def test_errors_of_the_server_are_shown(page, stub, tolerated, expect, status, message, shown):
    tolerated.append(str(status))
    stub.refusals.append(("chat", status, message))
    page.get_by_label("Question about the document").fill("Tell me")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(shown)
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".turn")).to_have_attribute("data-state", "done")
    assert len(stub.asked) == 1 and len(stub.asked[0]["messages"]) == 1


def test_a_connection_that_ends_too_early_is_an_error(page, stub, expect):
    stub.breaks = True
    page.get_by_label("Question about the document").fill("Tell me")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The connection ended before the answer did.")
    expect(page.locator(".answer")).to_contain_text("You asked")


def test_the_key_is_asked_for_and_kept_in_the_tab(opened, stub, url, novel, tolerated, ask, expect):
    tolerated.append("401")
    stub.key = "open sesame"
    page = opened(url)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This server asks for a key")
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("did not accept this key")
    page.get_by_label("API key").fill("open sesame")
    page.keyboard.press("Enter")
    expect(page.locator(".doc")).to_have_text(["book.txt33,222 tokens · 130 KiB"])
    ask(page, "Tell me")
    page.reload()
    expect(page.locator(".question")).to_have_text("Tell me")
    expect(dialog).to_have_count(0)
    assert "sesame" not in page.evaluate("JSON.stringify(localStorage)")


def test_a_full_storage_is_said_and_the_words_are_kept(page, ask, expect):
    page.evaluate("""() => {
        localStorage.setItem("room for words", "x".repeat(1200));
        for (let size = 2 ** 24; size >= 1; size /= 2)
            try { localStorage.setItem(`filler ${size}`, "x".repeat(size)); } catch {}
        localStorage.removeItem("room for words");
    }""")
    ask(page, "Tell me")
    expect(page.get_by_role("alert")).to_contain_text("The browser's storage is full")
    page.reload()
    expect(page.locator(".answer")).to_contain_text("not a word.")
