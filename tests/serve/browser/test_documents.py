"""Documents: sent, read, chosen, renamed, deleted, and what goes wrong with them."""

from __future__ import annotations

import re


def files(*names: str, text: str = "A short text. " * 50) -> list[dict]:
    return [{"name": name, "mimeType": "text/plain", "buffer": text.encode()} for name in names]


def test_nothing_is_read_yet(opened, url, expect):
    page = opened(url)
    expect(page.get_by_role("heading", name="Nothing is read yet")).to_be_visible()
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_disabled()
    expect(page.get_by_role("button", name="choose a file")).to_be_visible()


def test_upload_progress_and_ready(opened, stub, url, expect):
    stub.reading.clear()
    page = opened(url)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="choose a file").click()
    chooser.value.set_files(files("story.txt"))
    listed = page.locator(".doc", has_text="story.txt")
    expect(listed).to_contain_text("50% read · 5,000 tokens/s · 20 s left")
    expect(listed.locator("progress")).to_have_attribute("value", re.compile("^(49|50)$"))
    expect(page.get_by_role("main")).to_contain_text("Being read")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_disabled()
    stub.reading.set()
    expect(listed).to_contain_text(re.compile(r"^story.txt175 tokens · 700 bytes$"))
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
    expect(page.get_by_role("region", name="Text of the document")).to_contain_text("A short text.")
    expect(page.get_by_role("status")).to_have_text("story.txt is read.")


def test_what_is_dropped_is_sent(opened, url, expect):
    page = opened(url)
    drop = """([kind]) => {
        const held = new DataTransfer();
        held.items.add(new File(["dropped text"], "dropped.txt", { type: "text/plain" }));
        document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: held, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(drop, ["dragover"])
    expect(page.locator("html")).to_have_class("dropping")
    page.evaluate(drop, ["drop"])
    expect(page.locator("html")).not_to_have_class("dropping")
    expect(page.locator(".doc", has_text="dropped.txt")).to_contain_text("3 tokens")


def test_several_files_are_all_sent(opened, url, expect):
    page = opened(url)
    page.locator("#file").set_input_files(files("one.txt", "two.txt", "three.txt"))
    expect(page.locator(".doc")).to_have_count(3)
    expect(page.locator(".doc progress")).to_have_count(0)


def test_rename(page, stub, novel, expect):
    page.get_by_role("button", name="Rename book.txt").click()
    field = page.get_by_role("textbox", name="Name")
    expect(field).to_have_value("book.txt")
    field.fill("A better name")
    page.keyboard.press("Enter")
    expect(page.locator(".doc")).to_contain_text("A better name")
    expect(page.get_by_role("heading", name="A better name")).to_be_visible()
    assert stub.documents[novel]["name"] == "A better name"


def test_renaming_can_be_given_up(page, stub, novel, expect):
    page.locator(".doc").focus()
    page.keyboard.press("F2")
    page.get_by_role("textbox", name="Name").fill("Another")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Name").fill("Another")
    page.get_by_role("button", name="Cancel").click()
    assert stub.documents[novel]["name"] == "book.txt"


def test_deleting_asks_first(page, stub, ask, expect):
    ask(page, "What is it about?")
    page.locator(".doc").focus()
    page.keyboard.press("Delete")
    expect(page.get_by_role("dialog")).to_contain_text("“book.txt” and all that was read of it")
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Enter")
    assert len(stub.documents) == 1
    page.get_by_role("button", name="Delete book.txt").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".doc")).to_have_count(0)
    expect(page.get_by_role("heading", name="Nothing is read yet")).to_be_visible()
    assert stub.documents == {} and page.evaluate("Object.keys(localStorage).join()") == ""
    expect(page.get_by_role("button", name="choose a file")).to_be_focused()


def test_deleting_while_an_answer_is_written_keeps_nothing_of_it(page, stub, expect):
    stub.writing.clear()
    page.get_by_label("Question about the document").fill("Tell me")
    page.keyboard.press("Enter")
    expect(page.locator(".turn .answer")).to_contain_text("You asked")
    page.get_by_role("button", name="Delete book.txt").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Nothing is read yet")).to_be_visible()
    stub.writing.set()
    page.wait_for_timeout(300)  # the answer is broken off a moment later
    assert stub.documents == {} and page.evaluate("Object.keys(localStorage).join()") == ""


def test_a_document_that_could_not_be_read_says_why(opened, stub, url, expect):
    broken = stub.add("broken.pdf", "x")
    stub.documents[broken] |= {"status": "failed", "error": "broken.pdf is no PDF file", "tokens": None}
    page = opened(url)
    expect(page.get_by_role("main")).to_contain_text("broken.pdf is no PDF file")
    expect(page.locator(".doc")).to_contain_text("broken.pdf is no PDF file")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_disabled()


def test_a_file_that_is_refused_says_why(page, stub, tolerated, expect):
    tolerated.append("413")
    stub.refusals.append(("documents", 413, "the file has 3 GB, and this server takes 1 GB"))
    page.locator("#file").set_input_files(files("large.txt"))
    expect(page.get_by_role("alert")).to_contain_text("the file has 3 GB, and this server takes 1 GB")
    expect(page.locator("#list li")).to_have_count(1)
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_file_that_is_no_text_is_named_with_what_is_accepted(page, stub, tolerated, expect):
    tolerated.append("400")
    stub.refusals.append(("documents", 400, "the file is not UTF-8 text"))
    assert ".pdf" in page.locator("#file").get_attribute("accept")
    page.locator("#file").set_input_files(files("photo.jpg"))
    expect(page.get_by_role("alert")).to_contain_text("photo.jpg: the file is not UTF-8 text")
    expect(page.get_by_role("alert")).to_contain_text("PDF and HTML")


def test_each_document_has_its_own_conversation_and_address(page, stub, ask, expect):
    other = stub.add("other.txt", "Another text. " * 100)
    ask(page, "About the book?")
    page.reload()
    page.locator(".doc", has_text="other.txt").click()
    expect(page.get_by_role("heading", name="Ask about this text")).to_be_visible()
    ask(page, "About the other?")
    page.locator(".doc", has_text="book.txt").click()
    expect(page.locator(".question")).to_have_text("About the book?")
    page.goto(page.url.partition("#")[0] + f"#{other}")
    expect(page.locator(".question")).to_have_text("About the other?")
    expect(page.get_by_role("region", name="Text of the document")).to_contain_text("Another text.")


def test_a_server_that_was_away_is_found_again(opened, stub, url, tolerated, expect):
    tolerated.append("503")
    stub.refusals += [("models", 503, "starting")]
    page = opened(url)
    expect(page.get_by_role("alert")).to_contain_text("The server failed: starting")
    expect(page.get_by_role("heading", name="Nothing is read yet")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
