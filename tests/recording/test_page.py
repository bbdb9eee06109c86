"""The page: self-contained, everything in it escaped, the words beside what was chosen, and a script that works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
import torch

from longspan.attend import Choice
from longspan.bundled import heldout_text, load_bundled
from longspan.recording.chunks import Chunking
from longspan.recording.page import chunk_texts, write_page

SIX = Chunking((0, 4, 8, 12, 16, 20), 22)
HOSTILE = ["<script>alert(1)</script>", "\"quoted\" & 'so'", "</span><img src=x onerror=y>", "{title}", "a\x00b\x1b"]
HOSTILE.append("é ☃ <!--")


def choice(units, layer=0):
    return Choice(0, layer, 0, 21, 21, torch.tensor(units), 4, 0, None, 0, ((0, 4), (16, 22)), 0)


CHOICES = [choice([[1], [3]]), choice([[2], [2]], layer=2)]


class Reader(HTMLParser):
    """Tags with their attributes, and the text of each."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], {}
        self._open = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(len(self.tags) - 1)

    def handle_endtag(self, tag):
        while self._open and self.tags[self._open.pop()][0] != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self.words[self._open[-1]] = self.words.get(self._open[-1], "") + data

    def of(self, tag):
        return [(attrs, self.words.get(n, "")) for n, (name, attrs) in enumerate(self.tags) if name == tag]


@pytest.fixture
def page(tmp_path):
    """The page of some choices, read again."""

    def write_and_read(**options):
        write_page(tmp_path / "p.html", CHOICES, SIX, HOSTILE, **options)
        return Reader((tmp_path / "p.html").read_text(encoding="utf-8"))

    return write_and_read


@pytest.fixture
def read(page):
    return page(answers=[3], title="<b>title</b>", facts={"a<b": "c&d"}, kind="group")


def test_words_are_escaped(read):
    spans = read.of("span")
    assert [text for _, text in spans] == [text.replace("\x00", "\ufffd").replace("\x1b", "\ufffd") for text in HOSTILE]
    assert [attrs.get("class") for attrs, _ in spans] == [None, None, None, "answer", None, None]
    assert len(read.of("script")) == 2 and not read.of("img") and not read.of("b")
    assert read.of("h1")[0][1] == "<b>title</b>" and read.of("dt")[0][1] == "a<b" and read.of("dd")[0][1] == "c&d"


def test_nothing_comes_from_outside(read):
    assert not {"link", "img", "iframe", "object", "embed", "video", "audio"} & {tag for tag, _ in read.tags}
    assert not [attrs for _, attrs in read.tags if {"src", "href", "action", "onclick", "onload"} & attrs.keys()]
    policy = next(attrs["content"] for tag, attrs in read.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    code = "".join(text for tag in ("script", "style") for _, text in read.of(tag))
    assert len(code) > 4000 and not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(|https?:", code)


def test_the_data(read):
    data = json.loads(read.of("script")[0][1])
    assert data["rows"] == [[0, 0], [0, 1], [2, 0], [2, 1]] and data["answers"] == [3] and data["kind"] == "group"
    assert data["kept"] == ["120011", "100211", "102011", "102011"]
    assert data["spans"][0] == [0, 4] and data["spans"][-1] == [20, 22]


def test_nothing_ends_the_data_early(page):
    read = page(title="t", kind="</script><b>")
    assert json.loads(read.of("script")[0][1])["kind"] == "</script><b>" and not read.of("b")


def test_a_text_for_each_chunk(tmp_path):
    with pytest.raises(ValueError, match="6 chunks"):
        write_page(tmp_path / "p.html", CHOICES, SIX, ["a"], title="t")


STUB = """
const made = (name) => ({ name, textContent: "", classes: new Set(), on: {}, kids: [],
  classList: null, addEventListener(kind, f) { this.on[kind] = f; }, scrollIntoView() { this.scrolled = true; },
  replaceChildren(...kids) { this.kids = kids; }, getBoundingClientRect: () => ({ left: 10 }),
  getContext: () => new Proxy({}, { get: (t, k) => t[k] ?? (() => {}), set: (t, k, v) => (t[k] = v, true) }) });
const el = (name) => {
  const x = made(name);
  x.classList = { add: (c) => x.classes.add(c), remove: (c) => x.classes.delete(c) };
  return x;
};
const byId = { data: el("script"), map: el("canvas"), about: el("div") };
const words = WORDS.map((w) => Object.assign(el("span"), { textContent: w }));
byId.data.textContent = DATA;
globalThis.document = { getElementById: (id) => byId[id], querySelectorAll: () => words, createElement: el };
"""
ASK = """
const say = () => [byId.about.kids.map((k) => k.textContent), words.map((w) => w.classes.has("on")), byId.map.width];
const out = [say()];
words[1].on.mouseenter(); out.push(say());
byId.map.on.mousemove({ clientX: 10 + 58 + 2 * 22 + 3 }); out.push(say());
byId.map.on.keydown({ key: "ArrowLeft", preventDefault() {} }); out.push(say());
byId.map.on.mousemove({ clientX: 12 }); out.push(say());
console.log(JSON.stringify(out));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script(read, tmp_path):
    """Pointing at a chunk, in the text or in the map, shows its words and who chose it."""
    (_, data), (_, script) = read.of("script")
    stub = STUB.replace("WORDS", json.dumps([text for _, text in read.of("span")])).replace("DATA", json.dumps(data))
    (tmp_path / "run.js").write_text(stub + script.replace('"use strict";', "") + ASK, encoding="utf-8")
    ran = subprocess.run(["node", tmp_path / "run.js"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    begun, hovered, pointed, walked, outside = json.loads(ran.stdout)
    assert begun[0] == ["Chunk 3, tokens 12 to 15, contains the answer. Chosen by 1 of 4 groups.",
                        "Chosen by groups of layer 0: 1.", "{title}"]  # fmt: skip
    assert hovered[0][0] == "Chunk 1, tokens 4 to 7. Chosen by 1 of 4 groups." and hovered[0][-1] == HOSTILE[1]
    assert hovered[1] == [False, True, False, False, False, False]
    assert pointed[0] == ["Chunk 2, tokens 8 to 11. Chosen by 2 of 4 groups.", "Chosen by groups of layer 2: 0, 1.",
                          HOSTILE[2]]  # fmt: skip
    assert walked[1] == hovered[1] and outside == walked


@pytest.mark.parametrize("size", [7, 32])
def test_the_words_of_chunks_are_the_text(size):
    tokenizer = load_bundled()[1]
    text = heldout_text()[:3000].encode("ascii", "ignore").decode()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    chunks = Chunking(tuple(range(0, len(ids), size)), len(ids))
    texts = chunk_texts(tokenizer, ids, chunks)
    assert len(texts) == len(chunks) and "".join(texts) == text
    with pytest.raises(ValueError, match="but ids has"):
        chunk_texts(tokenizer, ids[1:], chunks)


def test_a_tokenizer_that_drops_leading_spaces():
    class Words:
        words = ["One", " two", " three", " four"]

        def decode(self, ids, **_):
            return "".join(self.words[n] for n in ids).lstrip()

    assert chunk_texts(Words(), [0, 1, 2, 3], Chunking((0, 2), 4)) == ["One two", " three four"]
