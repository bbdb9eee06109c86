"""The page with the real server behind it, and the bundled model behind that."""

from __future__ import annotations

import json
import re

import pytest

from support.serving import KEY, QUESTION


@pytest.fixture(scope="module")
def served_book(served, book):
    """The id of a document that is read, and its text."""
    return served.add(book), book


@pytest.fixture
def page(opened, served, served_book, expect):
    page = opened(f"{served.url}#{served_book[0]}")
    expect(page.locator("#page .piece").first).to_be_attached()
    return page


def test_the_answer_is_the_models_with_what_it_attended_to(page, served, served_book, ask, expect):
    document, text = served_book
    whole = served.ask(QUESTION, document=document, passages=True, max_tokens=8)
    page.get_by_label("at most").fill("8")
    page.locator("summary").click()
    page.get_by_label("An answer ends before").fill("")
    turn = ask(page, QUESTION)
    answer = whole["choices"][0]["message"]["content"]
    assert KEY in answer and turn.locator(".answer").text_content().lstrip() == answer.lstrip()
    assert turn.locator("[data-token]").count() > 4
    looked = whole["choices"][0]["passages"]["answer"]
    assert KEY in looked[0]["text"] and whole["choices"][0]["finish_reason"]
    starts = turn.locator(".passage").evaluate_all("all => all.map((x) => Number(x.dataset.start))")
    assert starts == [one["start"] for one in sorted(looked, key=lambda one: KEY not in one["text"])]
    mark = page.locator(f"#page mark[data-start='{starts[0]}']").first
    expect(mark).to_be_in_viewport()
    assert text[starts[0] :].startswith(mark.text_content())


def test_a_text_is_sent_read_and_asked(page, served, ask, expect):
    text = "<script>alert(1)</script> Nobody reads this. " * 60
    page.locator("#file").set_input_files({"name": "small.txt", "mimeType": "text/plain", "buffer": text.encode()})
    listed = page.locator(".doc", has_text="small.txt")
    expect(listed).to_contain_text(re.compile(r"[\d,]+ tokens · 2\.\d KiB"), timeout=60_000)
    expect(page.get_by_role("region", name="Text of the document")).to_contain_text("<script>alert(1)</script>")
    page.get_by_label("at most").fill("4")
    ask(page, "What is it?")
    page.reload()
    expect(page.locator(".question")).to_have_text("What is it?")
    page.get_by_role("button", name="Delete small.txt").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(listed).to_have_count(0)
    names = [one["name"] for one in served.http.get("/v1/documents").json()["data"]]
    assert "small.txt" not in names


def test_stopping_ends_the_request(page, served, expect):
    page.get_by_label("at most").fill("400")
    page.get_by_label("Question about the document").fill("Go on")
    page.keyboard.press("Enter")
    expect(page.locator("[data-state='writing'] .answer")).not_to_be_empty()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".turn")).to_have_attribute("data-state", "stopped")
    page.wait_for_timeout(100)
    for _ in range(200):
        if served.idle():
            break
        page.wait_for_timeout(50)
    assert served.idle()


def test_every_file_of_the_page_is_served_with_its_type_and_policy(opened, served, served_book):
    seen = {}
    page = opened(f"{served.url}/")
    page.on("response", lambda response: seen.update({response.url.removeprefix(served.url): response}))
    page.reload()
    page.locator(".doc").first.wait_for(state="attached")
    files = {url: response for url, response in seen.items() if not url.startswith("/v1/")}
    assert {"/", "/page/app.css", "/page/app.js", "/page/text.js"} <= files.keys()
    kinds = {url: response.headers["content-type"].partition(";")[0] for url, response in files.items()}
    assert {kinds[url] for url in kinds if url.endswith(".js")} == {"text/javascript"}
    assert all("default-src 'none'" in response.headers["content-security-policy"] for response in files.values())
    (models,) = [response for url, response in seen.items() if url == "/v1/models"]
    told = json.loads(models.text())["data"][0]["longspan"]
    assert [told[name] for name in ("method", "whole", "chooses", "chat")] == ["longheads", 512, True, False]
