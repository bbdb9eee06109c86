"""A document as its user has it: read, asked, added to, forked, saved, opened."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch

import longspan
from longspan.documents.conversation import Conversation
from longspan.documents.folder import Folder
from longspan.documents.manifest import differences, plain
from longspan.errors import DocumentError

ASK = "Who is the narrator?"


@contextlib.contextmanager
def unraisable():
    """What is raised in this block where nobody can catch it."""
    found, before = [], sys.unraisablehook
    sys.unraisablehook = found.append
    try:
        yield found
    finally:
        sys.unraisablehook = before


def contents_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_an_answer_is_what_generate_gives(document, fresh, tokenizer):
    answer = document.ask(ASK, 8)
    model, ids = fresh(), document.prompt(ASK)[None]
    longspan.extend(model, longspan.LongHeads(score="bounds"))
    cache = longspan.new_cache(model)
    with torch.inference_mode():
        for part in ids[:, : document.tokens].split(300, dim=1):
            model(part, past_key_values=cache)
        mask, greedy = torch.ones_like(ids), {"do_sample": False, "pad_token_id": 0}
        made = model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=8, **greedy)
    assert list(answer.tokens) == made[0, ids.shape[1] :].tolist()
    assert answer.text == str(answer) == tokenizer.decode(answer.tokens, skip_special_tokens=True)
    assert 0 < answer.first_token_seconds <= answer.seconds and answer.passages is None
    assert document.text in tokenizer.decode(ids[0], skip_special_tokens=True)


def test_it_is_as_it_was_after_a_question(document):
    first = document.ask(ASK, 8)
    document.ask("Where do rivers run?", 30)
    assert document.ask(ASK, 8).tokens == first.tokens


def test_the_text_comes_as_it_is_written(document):
    said = []
    answer = document.ask(ASK, 8, stream=said.append)
    assert "".join(said).strip() == answer.text.strip()


def test_options_of_generate(document):
    torch.manual_seed(0)
    drawn = {document.ask(ASK, 6, do_sample=True, temperature=3.0).tokens for _ in range(4)}
    assert len(drawn) > 1


def test_threads_ask_at_once(document):
    """Each gets the answer that it would get alone, with passages of its own."""
    questions = [f"Question {n}: who?" for n in range(6)]
    alone = [document.ask(q, 6, passages=n % 2 == 0) for n, q in enumerate(questions)]
    found = [None] * len(questions)

    def ask(n):
        found[n] = document.ask(questions[n], 6, passages=n % 2 == 0)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    assert [one.passages for one in found] == [one.passages for one in alone]


def test_saved_and_opened(document, fresh, tokenizer, tmp_path):
    answer = document.ask(ASK, 8)
    document.save(tmp_path / "a.longspan")
    before = contents_of(tmp_path / "a.longspan")
    opened = longspan.Document.open(tmp_path / "a.longspan", fresh(), tokenizer, verify=True)
    assert opened.ask(ASK, 8).tokens == answer.tokens
    assert opened.text == document.text and opened.tokens == document.tokens
    assert opened.path == str(tmp_path / "a.longspan") == document.path
    assert contents_of(tmp_path / "a.longspan") == before


def test_what_is_mapped_is_given_back(document):
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc")
    document.ask(ASK, 2)
    gc.collect()
    before = len(maps.read_text().splitlines())
    for _ in range(5):
        document.ask(ASK, 2)
    gc.collect()
    assert len(maps.read_text().splitlines()) <= before + 3


def test_append_adds_segments_and_what_was_there_stays(document, fresh, tokenizer, tmp_path):
    path = tmp_path / "a.longspan"
    document.save(path)
    before, reader = contents_of(path), longspan.Document.open(path, fresh(), tokenizer)
    answer = reader.ask(ASK, 8)
    document.append("\nThe narrator is Ishmael." * 5, source="more.txt")
    assert contents_of(path) == before, "nothing is written before it is saved"
    assert re.search(r"a.longspan but for the last \d+ tokens, which are not saved", repr(document))
    longer = document.ask(ASK, 8)
    document.save(path)
    assert "not saved" not in repr(document)
    after = contents_of(path)
    assert all(after[name] == data for name, data in before.items() if name.startswith("data"))
    assert reader.ask(ASK, 8).tokens == answer.tokens, "who has it open goes on with what he opened"
    assert longspan.Document.open(path, fresh(), tokenizer, verify=True).ask(ASK, 8).tokens == longer.tokens
    assert document.text.endswith("Ishmael.") and document.contents.sources[-1].name == "more.txt"


def test_a_fork_goes_its_own_way(document, tmp_path):
    branch = document.fork()
    branch.append("\nThe other end.")
    assert branch.tokens > document.tokens and not document.text.endswith("The other end.")
    document.save(tmp_path / "a.longspan")
    branch.save(tmp_path / "b.longspan")
    with pytest.raises(DocumentError, match="already holds a document"):
        branch.fork().save(tmp_path / "a.longspan")


def test_two_who_append_to_one(document, fresh, tokenizer, tmp_path):
    path = tmp_path / "a.longspan"
    document.save(path)
    other = longspan.Document.open(path, fresh(), tokenizer)
    document.append("\nOne.")
    document.save(path)
    other.append("\nTwo.")
    with pytest.raises(DocumentError, match="another process changed"):
        other.save(path)
    document.append("\nThree.")
    with Folder(path).alone(), pytest.raises(DocumentError, match="another process is writing"):
        document.save(path)


def test_passages_are_what_was_looked_at(document):
    answer = document.ask(ASK, 6, passages=True)
    assert answer.passages and answer.tokens == document.ask(ASK, 6).tokens
    lifts = [one.lift for one in answer.passages]
    assert lifts == sorted(lifts, reverse=True) and lifts[-1] > 1 and len(lifts) <= 4
    for one in answer.passages:
        assert document.text[one.first : one.last] == one.text and 0 < one.share <= 1


def test_passages_of_several_files_lie_in_those_files(fresh, tokenizer, text):
    parts = {"one.txt": text[: len(text) // 2], "two.txt": text[len(text) // 2 :]}
    answer = longspan.read(fresh(), tokenizer, list(parts.items()), prefill_chunk=300).ask(ASK, 4, passages=True)
    assert answer.passages
    for one in answer.passages:
        assert parts[one.source][one.first : one.last] == one.text


def test_without_the_text(fresh, tokenizer, text, tmp_path):
    document = longspan.read(fresh(), tokenizer, text, keep_text=False, out=tmp_path / "a.longspan")
    assert document.text is None and not list((tmp_path / "a.longspan").glob("text*"))
    opened = longspan.Document.open(tmp_path / "a.longspan", fresh(), tokenizer)
    found = opened.ask(ASK, 4, passages=True).passages
    assert found and all(one.text is None and one.last > one.first for one in found)
    opened.append("More.")
    opened.save(tmp_path / "a.longspan")
    assert longspan.Document.open(tmp_path / "a.longspan", fresh(), tokenizer, verify=True).text is None


def test_several_texts(fresh, tokenizer):
    document = longspan.read(fresh(), tokenizer, [("one", "First words. " * 60), ("two", "Second words. " * 60)])
    assert [s.name for s in document.contents.sources] == ["one", "two"]
    starts = [document.text[s.start :].split()[0] for s in document.contents.sources]
    assert starts == ["First", "Second"]


def test_an_extended_model_is_left_as_it_is(fresh, tokenizer, text):
    model = fresh()
    longspan.extend(model, "dca")
    assert "dca" in repr(longspan.read(model, tokenizer, text))
    with pytest.raises(DocumentError, match="method would change that"):
        longspan.read(model, tokenizer, text, method="esa")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_files_without_a_name_lie_in_kv_dir(fresh, tokenizer, text, tmp_path):
    document = longspan.read(fresh(), tokenizer, text, kv_tier="disk", kv_dir=tmp_path, prefill_chunk=300)
    document.append("And then it ended.")
    files = [os.readlink(f"/proc/self/fd/{file.fileno()}") for file in document.contents.data]
    assert document.attachment().report.kv_dir == tmp_path
    assert len(files) == 2 and all(name.startswith(f"{tmp_path}/") for name in files)


def test_a_reading_goes_on_where_it_was_broken_off(fresh, tokenizer, text, tmp_path):
    """Twice, and in another process's place; it ends in the same bytes as one that was not."""

    class Enough(Exception):
        pass

    def stop_after(prefill_chunks):
        def done(stop, total):
            if stop >= prefill_chunks * 300:
                raise Enough

        return done

    whole, broken = tmp_path / "whole.longspan", tmp_path / "broken.longspan"
    longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=whole)
    for prefill_chunks in (1, 3):
        with pytest.raises(Enough):
            longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=broken, done=stop_after(prefill_chunks))
        with pytest.raises(
            DocumentError, match=rf"is unfinished \({300 * prefill_chunks:,} of .*same `longspan read` again"
        ):
            longspan.Document.open(broken, fresh(), tokenizer)
    with pytest.raises(DocumentError, match="unfinished reading of another parameters.top_k"):
        longspan.read(
            fresh(), tokenizer, text, method=longspan.ESA(top_k=4, share="group"), prefill_chunk=300, out=broken
        )
    read = []
    longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=broken, done=lambda stop, total: read.append(stop))
    assert read[0] == 1200
    assert contents_of(broken) == contents_of(whole)
    read.clear()
    again = longspan.read(fresh(), tokenizer, text, prefill_chunk=300, out=broken, done=lambda *x: read.append(x))
    assert not read and again.tokens == len(again.contents.ids), "what is read is opened"
    with pytest.raises(DocumentError, match="already holds a document of another prefill_chunk"):
        longspan.read(fresh(), tokenizer, text, prefill_chunk=299, out=broken)


def test_an_index_that_begins_late(fresh, tokenizer, text, tmp_path):
    """The first prefill chunks of InfLLM fill no block, so nothing says yet how large one is."""
    document = longspan.read(fresh(), tokenizer, text, method="infllm", prefill_chunk=40, out=tmp_path / "a.longspan")
    assert len(document.contents.segments) > 1
    assert len(document.contents.segments[0].spans) < len(document.contents.streams)
    opened = longspan.Document.open(tmp_path / "a.longspan", fresh(), tokenizer, verify=True)
    assert opened.ask(ASK, 6).tokens == document.ask(ASK, 6).tokens


def test_a_calibration_goes_with_it(fresh, tokenizer, text, tmp_path):
    model = fresh()
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    calibration = longspan.calibrate(model, [ids], tokens=600, progress=False)
    path = tmp_path / "a.longspan"
    document = longspan.read(model, tokenizer, text, method="esa", calibration=calibration, out=path)
    answer = document.ask(ASK, 6)
    assert longspan.Document.open(path, fresh(), tokenizer).ask(ASK, 6).tokens == answer.tokens
    other = fresh()
    longspan.extend(other, "esa")
    with pytest.raises(DocumentError, match="the calibration's hash is .* and nothing here"):
        longspan.Document.open(path, other, tokenizer)


def test_a_conversation(document, fresh, tokenizer, tmp_path):
    talk = Conversation(document)
    first = talk.say(ASK, 6)
    assert first.tokens == document.ask(ASK, 6).tokens
    second = talk.say("And then?", 6)
    assert talk.undo().answer == second and len(talk.turns) == 1
    assert talk.say("And then?", 6).tokens == second.tokens
    assert talk.passages()[0].lift > 1
    branch = talk.save(tmp_path / "talk.longspan")
    assert torch.equal(branch.contents.ids, talk.ids()) and ASK in branch.text
    opened = longspan.Document.open(tmp_path / "talk.longspan", fresh(), tokenizer, verify=True)
    assert opened.ask("More?", 4).tokens == branch.ask("More?", 4).tokens
    for _ in range(2):
        talk.undo()
    with pytest.raises(DocumentError, match="no question was asked yet"):
        talk.undo()


def test_a_copied_folder_is_the_same_document(saved, fresh, tokenizer, tmp_path):
    shutil.copytree(saved, tmp_path / "b.longspan")
    opened = longspan.Document.open(tmp_path / "b.longspan", fresh(), tokenizer, verify=True)
    assert opened.ask(ASK, 4).tokens


def test_differences_name_nested_fields():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == [("a.c", 2, 3)]
    assert plain(longspan.documents.manifest.Source("x", 0, 3)) == {"name": "x", "start": 0, "stop": 3}


def test_a_document_is_not_saved_over_a_reading_that_was_not_finished(document, fresh, tokenizer, text, tmp_path):
    path = tmp_path / "a.longspan"

    def stop(*_):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        longspan.read(fresh(), tokenizer, text, prefill_chunk=200, out=path, done=stop)
    before = contents_of(path)
    with pytest.raises(DocumentError, match="holds an unfinished reading; name a new folder"):
        document.save(path)
    assert contents_of(path) == before


def test_verify_closes_what_it_opens(saved):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with unraisable() as found:
            longspan.documents.verify(saved)
            gc.collect()
    assert not found
