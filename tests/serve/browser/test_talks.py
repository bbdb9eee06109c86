"""Conversations: several about a document, one without a text, questions written anew, a file of it all."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_several_conversations_about_a_document(page, ask, expect):
    ask(page, "First?")
    page.get_by_role("button", name="New").click()
    ask(page, "Second?")
    talks = page.get_by_label("Conversations about this document")
    expect(talks.locator("option")).to_have_text(["Second?", "First?"])
    page.reload()
    expect(page.locator(".question")).to_have_text("Second?")
    talks.select_option("First?")
    expect(page.locator(".question")).to_have_text("First?")
    page.get_by_role("button", name="Delete the conversation").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".question")).to_have_text("Second?")
    expect(talks).to_be_hidden()
    page.reload()
    expect(page.locator(".question")).to_have_text("Second?")


def test_an_answer_is_asked_for_again_and_the_earlier_one_stays(page, stub, ask, expect):
    ask(page, "First?")
    stub.answer = "Another answer."
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".answer")).to_have_text("Another answer.")
    assert stub.asked[1]["messages"] == stub.asked[0]["messages"]
    page.get_by_label("Conversations about this document").select_option(index=1)
    expect(page.locator(".answer")).to_contain_text("not a word.")


@pytest.mark.parametrize("given_up", [False, True])
def test_a_question_is_written_anew_and_the_earlier_conversation_stays(page, stub, ask, expect, given_up):
    for question in ("First?", "Second?", "Third?"):
        ask(page, question)
    page.locator(".turn").nth(1).get_by_role("button", name="Edit").click()
    field = page.get_by_label("Question about the document")
    expect(field).to_have_value("Second?")
    expect(page.locator("#editing")).to_be_visible()
    if given_up:
        page.get_by_role("button", name="Cancel").click()
        expect(field).to_have_value("")
        expect(page.locator(".question")).to_have_count(3)
        return
    field.fill("Another?")
    page.keyboard.press("Enter")
    expect(page.locator(".question")).to_have_text(["First?", "Another?"])
    expect(page.locator(".turn").last).to_have_attribute("data-state", "done")
    assert [one["content"] for one in stub.asked[-1]["messages"] if one["role"] == "user"] == ["First?", "Another?"]
    page.get_by_label("Conversations about this document").select_option(index=1)
    expect(page.locator(".question")).to_have_text(["First?", "Second?", "Third?"])


def test_a_chat_without_a_text(opened, stub, novel, url, ask, expect):
    page = opened(url)
    page.get_by_role("button", name="Chat without a text").click()
    expect(page.get_by_role("region", name="Text of the document")).to_have_count(0)
    page.locator("summary").click()
    page.get_by_label("System message").fill("Be short.")
    page.get_by_label("Message", exact=True).fill("Who are you?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_attribute("data-state", "done")
    (asked,) = stub.asked
    assert [one["role"] for one in asked["messages"]] == ["system", "user"] and "document" not in asked
    page.reload()
    expect(page.locator(".question")).to_have_text("Who are you?")
    page.locator("body").evaluate("() => document.activeElement.blur()")
    page.keyboard.press("t")
    expect(page.locator("#conversation")).to_be_visible()
    page.locator(".doc").click()
    ask(page, "About the book?")
    assert [one["role"] for one in stub.asked[-1]["messages"]] == ["user"]
    expect(page.get_by_label("System message")).to_be_hidden()


def test_export(page, ask, expect):
    ask(page, "What is it about?")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "book-txt.md"
    written = Path(download.value.path()).read_text(encoding="utf-8")
    assert "## What is it about?" in written and "not a word." in written and written.count("\n> characters ") == 4


def test_options_are_sent_and_kept(page, stub, ask, expect):
    page.locator("summary").click()
    values = {"at most": "40", "Temperature": "0.7", "Top-p": "0.9", "Seed": "3", "An answer ends before": "\\n\\nEnd"}
    for label, value in values.items():
        page.get_by_label(label).fill(value)
    page.get_by_label("Temperature").press("Tab")
    page.reload()
    ask(page, "Tell me")
    (asked,) = stub.asked
    wanted = {"max_completion_tokens": 40, "temperature": 0.7, "top_p": 0.9, "seed": 3, "stop": ["\n\nEnd"]}
    assert {name: asked[name] for name in wanted} == wanted
    page.locator("summary").click()
    page.get_by_label("Temperature").fill("3")
    page.locator("summary").click()
    page.get_by_label("Question about the document").fill("And now?")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Temperature")).to_be_focused()
    assert len(stub.asked) == 1


def test_a_model_without_a_chat_template_ends_at_an_empty_line(opened, stub, novel, url, ask, expect):
    stub.template, stub.model = False, "/home/someone/models/a-model"
    page = opened(url)
    expect(page.locator("#model")).to_have_text("a-model · longheads · window of 512")
    ask(page, "Tell me")
    assert stub.asked[0]["stop"] == ["\n\n"] and stub.asked[0]["model"] == stub.model


def test_suggested_questions(opened, stub, novel, url, expect):
    stub.documents[novel]["questions"] = ["Who is it?", "Where?"]
    page = opened(url)
    page.get_by_role("list", name="Questions to begin with").get_by_role("button", name="Where?").click()
    expect(page.locator(".question")).to_have_text("Where?")
    expect(page.locator(".turn")).to_have_attribute("data-state", "done")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_focused()
