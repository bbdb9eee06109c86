"""Where text and question stand, whatever the template; and the text of PDF and HTML files."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path

import pytest
import torch
from tokenizers import processors

import longspan
from longspan.documents.conversation import Conversation
from longspan.documents.facts import layout_for
from longspan.documents.folder import Folder
from longspan.documents.layout import _spread, encode_text, find_layout, head_of
from longspan.errors import DocumentError
from longspan.text.extract import extract, is_plain
from support.templates import CHATML, with_template

TEXT, QUESTION = "It was a dark night. " * 50, "Who came?"


def test_a_chat_template(tokenizer):
    layout = find_layout(with_template(tokenizer, CHATML), "chat")
    assert find_layout(with_template(tokenizer, CHATML)).name == "quoted"
    assert (layout.name, layout.head, layout.joint) == ("chat", "<|user|>\n", "\n\n")
    assert layout.end == "</s>\n<|assistant|>\n" and layout.turn == "</s>\n<|user|>\n"


def test_the_prompt_reads_as_the_template_has_it(tokenizer, fresh):
    own = with_template(tokenizer, CHATML)
    document = longspan.read(fresh(), own, TEXT, layout="chat")
    asked = own.decode(document.prompt(QUESTION))
    messages = [{"role": "user", "content": f"{TEXT}\n\n{QUESTION}"}]
    assert asked == own.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert document.prompt(QUESTION)[-7:].tolist() != document.contents.ids[-7:].tolist()


def test_a_conversation_that_was_saved_goes_on_as_the_template_has_it(tokenizer, fresh, tmp_path):
    own = with_template(tokenizer, CHATML)
    talk = Conversation(longspan.read(fresh(), own, TEXT, layout="chat"))
    answer = talk.say(QUESTION, 4)
    talk.save(tmp_path / "talk.longspan")
    opened = longspan.Document.open(tmp_path / "talk.longspan", fresh(), own)
    messages = [{"role": "user", "content": f"{TEXT}\n\n{QUESTION}"}, {"role": "assistant", "content": answer.text}]
    messages.append({"role": "user", "content": "And then?"})
    expected = own.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert own.decode(opened.prompt("And then?")) == expected
    assert own.decode(Conversation(opened).document.prompt("And then?")) == expected
    assert talk.document.layout.joint == "\n\n", "the document itself stays as it is"


def test_a_template_that_prints_the_date(tokenizer, fresh, tmp_path, monkeypatch):
    """A document that was begun yesterday, finished or not, has yesterday's."""
    own, today = with_template(tokenizer, "{{ '<' + strftime_now('%d %b %Y') + '>' }}" + CHATML), "01 Jan 2026"
    render = own.apply_chat_template
    moved = lambda *args, **more: re.sub(r"<\d\d \w+ \d{4}>", f"<{today}>", render(*args, **more))  # noqa: E731
    monkeypatch.setattr(own, "apply_chat_template", moved)
    path, other = tmp_path / "a.longspan", with_template(tokenizer, "<02 Feb 2026>" + CHATML)
    longspan.read(fresh(), own, TEXT, layout="chat", out=path)
    head = layout_for(own, "chat", Folder(path)).head
    assert "01 Jan 2026" in head
    today = "02 Jan 2026"
    assert layout_for(own, "auto", Folder(path)).head == head
    assert today in layout_for(own, "auto", None).head == layout_for(own, "auto", Folder(tmp_path / "b")).head
    assert layout_for(other, "auto", Folder(path)).head != head, "another template"
    assert layout_for(own, "plain", Folder(path)).name == "plain"


def test_a_reading_goes_on_the_day_after(tokenizer, fresh, tmp_path, monkeypatch):
    own, today, read = (
        with_template(tokenizer, "{{ '<' + strftime_now('%d %b %Y') + '>' }}" + CHATML),
        "01 Jan 2026",
        [],
    )
    render = own.apply_chat_template
    moved = lambda *args, **more: re.sub(r"<\d\d \w+ \d{4}>", f"<{today}>", render(*args, **more))  # noqa: E731
    monkeypatch.setattr(own, "apply_chat_template", moved)

    def stop(tokens, total):
        read.append(tokens)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        longspan.read(fresh(), own, TEXT, prefill_chunk=100, out=tmp_path / "a", done=stop)
    today = "02 Jan 2026"
    document = longspan.read(
        fresh(), own, TEXT, prefill_chunk=100, out=tmp_path / "a", done=lambda *now: read.append(now[0])
    )
    assert read[:2] == [100, 200] and "01 Jan 2026" in document.layout.head
    today = "03 Jan 2026"
    read.clear()
    again = longspan.read(
        fresh(), own, TEXT, prefill_chunk=100, out=tmp_path / "a", done=lambda *now: read.append(now[0])
    )
    assert not read and again.layout == document.layout, "what is read is opened"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        "nothing",
        "{{ raise_exception('no') }}",
        "{% broken",
    ],
)
def test_a_template_that_does_not_show_the_text(tokenizer, template):
    with pytest.raises(DocumentError, match="the chat template.*use layout 'plain', or write your own"):
        find_layout(with_template(tokenizer, template))
    assert find_layout(with_template(tokenizer, template), "plain").joint == "\n"


def test_a_template_that_shows_no_answers(tokenizer):
    layout = find_layout(
        with_template(tokenizer, "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"), "chat"
    )
    assert layout.turn == layout.joint == "\n\n"


def test_a_tokenizer_without_a_template(tokenizer):
    plain = with_template(tokenizer, None)
    assert find_layout(plain) == find_layout(plain, "plain")
    with pytest.raises(DocumentError, match="the tokenizer has no chat template; use layout 'plain'"):
        find_layout(plain, "chat")


def test_a_layout_of_ones_own(tokenizer, fresh):
    document = longspan.read(fresh(), tokenizer, TEXT, layout="Read:\n{document}\n\nQ: {question}\nA:")
    asked = tokenizer.decode(document.prompt(QUESTION), skip_special_tokens=True)
    assert asked == f"Read:\n{TEXT}\n\nQ: {QUESTION}\nA:"


@pytest.mark.parametrize(
    "wanted", ["{question}{document}", "{document}", "{document}{document}{question}", "chatty", ""]
)
def test_no_such_layout(tokenizer, wanted):
    with pytest.raises(DocumentError, match="a layout must be 'auto', .*, or a text with"):
        find_layout(tokenizer, wanted)


def test_what_looks_special_in_a_text_is_text(tokenizer):
    ids, places = encode_text(tokenizer, "before</s>after")
    assert tokenizer.eos_token_id not in ids.tolist()
    assert tokenizer.decode(ids) == "before</s>after" and places[-1, 1] == len("before</s>after")


def test_the_first_token_is_the_tokenizers_own(tokenizer):
    first = tokenizer("a")["input_ids"][0]
    expected = [first] if first == tokenizer.bos_token_id else []
    assert head_of(tokenizer, find_layout(tokenizer, "plain")).tolist() == expected


def test_the_first_tokens_may_be_several(tokenizer):
    own = copy.deepcopy(tokenizer)
    first = [("<pad>", tokenizer.pad_token_id), ("<s>", tokenizer.bos_token_id)]
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<pad> <s> $A", special_tokens=first)
    own.bos_token = None
    layout = find_layout(own, "{document}\n{question}")
    assert head_of(own, layout).tolist() == list(dict(first).values())


def test_a_tokenizer_that_says_no_places():
    class Slow:
        is_fast = False

        def __call__(self, text, **options):
            return {"input_ids": [3] * (len(text) // 2)}

    ids, places = encode_text(Slow(), "x" * 11)
    assert len(ids) == 5 and places[0, 0] == 0 and places[-1, 1] == 11
    assert torch.equal(places[1:, 0], places[:-1, 1])
    assert int(_spread(2**24 + 3, 2)[-1, 1]) == 2**24 + 3, "a length that fp32 does not have"


# Files

HTML = """<!doctype html><head><title>No</title><style>p {}</style></head><body><h1>One &amp; two</h1>
<p>Three <b>four</b>,
five.</p><script>bad()</script><ul><li>six</li><li>sev<i>en</i></li></ul></body>"""


def test_html(tmp_path):
    pytest.importorskip("selectolax")
    (tmp_path / "a.HTML").write_text(HTML, encoding="utf-8")
    assert extract(tmp_path / "a.HTML") == "One & two\nThree four, five.\nsix\nseven"
    (tmp_path / "b.htm").write_text("<body><img src=x></body>")
    with pytest.raises(DocumentError, match="it contains no text"):
        extract(tmp_path / "b.htm")


def pdf(path: Path, words: str) -> None:
    """A page with a line on it, as small as a PDF file can be."""
    stream = f"BT /F1 24 Tf 72 700 Td ({words}) Tj ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
    ]
    body, places = "%PDF-1.4\n", []
    for n, one in enumerate(objects, 1):
        places.append(len(body))
        body += f"{n} 0 obj\n{one}\nendobj\n"
    table = "".join(f"{at:010} 00000 n \n" for at in places)
    body += f"xref\n0 5\n0000000000 65535 f \n{table}trailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF"
    path.write_bytes(body.encode("ascii"))


def test_pdf(tmp_path):
    pytest.importorskip("pypdf")
    pdf(tmp_path / "a.pdf", "Call me Ishmael.")
    assert extract(tmp_path / "a.pdf") == "Call me Ishmael."
    pdf(tmp_path / "empty.pdf", "")
    with pytest.raises(DocumentError, match="it contains no text"):
        extract(tmp_path / "empty.pdf")
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    with pytest.raises(DocumentError, match=r"bad.pdf: not a PDF file that can be read"):
        extract(tmp_path / "bad.pdf")


def test_defects_of_a_pdf_are_one_warning(tmp_path, caplog):
    pytest.importorskip("pypdf")
    pdf(tmp_path / "a.pdf", "Call me Ishmael.")
    data = (tmp_path / "a.pdf").read_bytes()
    (tmp_path / "a.pdf").write_bytes(re.sub(rb"startxref\n\d+", b"startxref\n7", data))
    with pytest.warns(UserWarning, match=r"a.pdf: \d+ defects of this PDF file") as caught:
        assert extract(tmp_path / "a.pdf") == "Call me Ishmael."
    assert len(caught) == 1 and not caplog.records


def test_without_the_extra(tmp_path, monkeypatch):
    pdf(tmp_path / "a.pdf", "x")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("longspan.text.extract.find_spec", lambda name: None)
    with pytest.raises(DocumentError, match=r"requires pypdf: pip install .*\[files\]"):
        extract(tmp_path / "a.pdf")
    assert is_plain(Path("a.txt")) and is_plain(Path("-")) and not is_plain(Path("a.PDF"))
