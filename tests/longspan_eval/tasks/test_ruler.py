"""RULER's synthetic tasks: wording, kinds and numbers of needles; answers worked out again from the text."""

from __future__ import annotations

import copy
import re
from collections import Counter

import pytest

from longspan_eval.tasks import TASKS, ruler_words
from longspan_eval.tasks.ruler_niah import DEPTHS
from longspan_eval.tasks.ruler_words import frequencies, vocabulary

NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for ([a-z0-9-]+) is: ([0-9a-f-]+)\.")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def build(tokenizer, name, length, seed, depth=None):
    example = TASKS[f"ruler-{name}"].build(tokenizer, length=length, seed=seed, depth=depth)
    return example, tokenizer.decode(example.input_ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("name", "needles", "keys", "key", "value"),
    [
        ("single-1", 1, 1, r"[a-z]+-[a-z]+", r"[1-9]\d{6}"),
        ("single-2", 1, 1, r"[a-z]+-[a-z]+", r"[1-9]\d{6}"),
        ("single-3", 1, 1, r"[a-z]+-[a-z]+", UUID.pattern),
        ("multikey-1", 4, 4, r"[a-z]+-[a-z]+", r"[1-9]\d{6}"),
        ("multikey-2", None, None, r"[a-z]+-[a-z]+", r"[1-9]\d{6}"),
        ("multikey-3", None, None, UUID.pattern, UUID.pattern),
        ("multivalue", 4, 1, r"[a-z]+-[a-z]+", r"[1-9]\d{6}"),
        ("multiquery", 4, 4, r"[a-z]+-[a-z]+", r"[1-9]\d{6}"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_niah(any_tokenizer, name, needles, keys, key, value, seed):
    example, text = build(any_tokenizer, f"niah-{name}", 6000, seed)
    found = [match.groups() for match in NEEDLE.finditer(text)]
    kind = "uuids" if UUID.fullmatch(found[0][2]) else "numbers"
    assert all(said == kind and re.fullmatch(key, own) and re.fullmatch(value, told) for said, own, told in found)
    assert len({told for _, _, told in found}) == len(found)
    if needles is None:
        assert len(found) > 30 and len({own for _, own, _ in found}) == len(found)
    else:
        assert len(found) == needles and len({own for _, own, _ in found}) == keys
    question = text.rpartition("\n")[2]
    single = name not in ("multivalue", "multiquery")
    wording = (
        r"What is the special magic {one} for (.+) mentioned in the provided text\? The special magic {one} for \1 "
        r"mentioned in the provided text is$"
        if single
        else r"What are all the special magic {all} for (.+) mentioned in the provided text\? The special magic {all} "
        r"for \1 mentioned in the provided text are$"
    )
    query = re.match(wording.format(one=kind[:-1], all=kind), question).group(1)
    asked = re.split(r", and |, ", query)
    assert len(asked) == (4 if name == "multiquery" else 1)
    assert Counter(example.references) == Counter(told for _, own, told in found if own in asked)
    some = f"A special magic {kind[:-1]} is" if single else f"Some special magic {kind} are"
    assert text.startswith(
        f"{some} hidden within the following text. Make sure to memorize it. I will quiz you about the "
    )


@pytest.mark.parametrize("name", ["niah-single-1", "niah-multikey-2", "niah-multikey-3"])
def test_niah_in_lines(tokenizer, name):
    _, text = build(tokenizer, name, 5000, 3)
    lines = text.split("\n")[2:-1]
    hay = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    assert all(NEEDLE.fullmatch(line) or line == hay for line in lines)
    assert sum(line == hay for line in lines) > 50 if name == "niah-single-1" else sum(map(hay.__eq__, lines)) <= 4


def test_niah_depths_are_rulers():
    assert len(DEPTHS) == 40 and DEPTHS[:4] == (0.0, 0.03, 0.05, 0.08) and DEPTHS[-1] == 1.0


def test_keys_run_out_with_a_reason(tokenizer, monkeypatch):
    monkeypatch.setattr("longspan_eval.tasks.ruler_niah.NOUNS", ("acorn",))
    monkeypatch.setattr("longspan_eval.tasks.ruler_niah.ADJECTIVES", ("able", "bold", "calm"))
    with pytest.raises(ValueError, match="niah-multikey-2 has 3 keys of words, too few"):
        build(tokenizer, "niah-multikey-2", 4000, 0)


@pytest.mark.parametrize("seed", range(4))
def test_variable_tracking(any_tokenizer, seed):
    example, text = build(any_tokenizer, "vt", 6000, seed)
    line = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
    assert text.startswith(line) and text.count(line) == 2
    shown, asked = text.split("\n\n" + line)
    question = (
        r"\nQuestion: Find all variables that are assigned the value (\d{5}) in the text above. Answer: According to "
        r"the chain\(s\) of variable assignment in the text above, 5 variables are assigned the value \1, they are:"
    )
    worked = re.search(question + r" ([A-Z]{3}(?: [A-Z]{3}){4})$", shown)
    assert traced(shown, worked.group(1)) == worked.group(2).split()
    value = re.search(question + "$", asked).group(1)
    assert tuple(traced(asked, value)) == example.references and len(set(example.references)) == 5
    assert value != worked.group(1)


def traced(text, value):
    """The variables of a value in the order of the text, which must give each before it is used."""
    held = {}
    for name, given in re.findall(r"\nVAR ([A-Z]+) = ((?:VAR )?\w+)(?=\n)", text):
        held[name] = held[given.removeprefix("VAR ")] if given.startswith("VAR ") else given
    return [name for name, own in held.items() if own == value]


def words_of(text):
    """The words of the last numbered list in a text, whose numbers must count up from 1."""
    entries = re.findall(r"(\d+)\. ([a-z]+)", text)
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    return Counter(word for _, word in entries)


@pytest.mark.parametrize(
    ("length", "common", "other", "shown_common", "shown_other", "shown"),
    [(2500, 6, 1, 3, 1, 20), (4095, 6, 1, 3, 1, 20), (6000, 30, 3, 10, 3, 40), (16_000, 30, 3, 10, 3, 40)],
)
def test_common_words(tokenizer, length, common, other, shown_common, shown_other, shown):
    example, text = build(tokenizer, "cwe", length, 2)
    head = "Memorize the ones that appear most often.\n"
    question = (
        "\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words that appear most "
    )
    question += "often in the list are:"
    assert text.startswith(
        "Below is a numbered list of words. In these words, some appear more often than others. " + head
    )
    first, second = text.split("\nBelow is")
    worked, _, answer = first.partition(question)
    counts = words_of(worked.partition(head)[2])
    assert Counter(counts.values()) == {shown_common: 10, shown_other: shown - 10}
    assert set(words_of(answer)) == {word for word, times in counts.items() if times == shown_common}
    assert second.endswith(question)
    asked = words_of(second.partition(head)[2].partition(question)[0])
    by_times = Counter(asked.values())
    assert set(by_times) == {common, other} and by_times[common] == 10 and by_times[other] >= 10
    assert {word for word, times in asked.items() if times == common} == set(example.references)
    assert not set(asked) & set(counts)
    left_over = second.partition(head)[2].partition("\n1.")[0]
    assert len(left_over) < 100


def test_common_words_repeat_more_where_words_run_out(tokenizer, monkeypatch):
    few = vocabulary()[:200]
    monkeypatch.setattr(ruler_words, "vocabulary", lambda: few)
    own = copy.copy(tokenizer)  # the words' tokens are remembered for each tokenizer
    _example, text = build(own, "cwe", 20_000, 2)
    asked = words_of(text.rpartition("Memorize the ones that appear most often.\n")[2].partition("\nQuestion")[0])
    by_times = Counter(asked.values())
    rare, often = sorted(by_times)
    assert often == 10 * rare and rare > 3 and rare % 3 == 0 and by_times[often] == 10
    assert 0.5 * 150 < by_times[rare] < 150


@pytest.mark.parametrize("length", [400, 777, 2000, 20_000])
def test_frequent_words(tokenizer, length):
    example, text = build(tokenizer, "fwe", length, 3)
    start = "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    start += "appeared coded words."
    end = (
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
    )
    end += (
        "appeared words in the above coded text? Answer: According to the coded text above, the three most frequently "
    )
    end += "appeared words are:"
    assert text.startswith(start) and text.endswith(end)
    counts = Counter(re.findall(r"[a-z]{6}", text[len(start) : -len(end)]))
    (_, second), (_, third), (_, fourth), *others = counts.most_common()
    assert {word for word, _ in counts.most_common(3)} == set(example.references)
    assert [counts[word] for word in example.references] == [second, third, fourth]
    assert not others or fourth > others[0][1]
    assert text.count("...") > 3 * second
    if length > 1000:
        assert second == pytest.approx(9 / 4 * third, rel=0.2) and third == pytest.approx(16 / 9 * fourth, rel=0.2)


def test_frequencies():
    # 100 / 1.644934 = 60.79; a quarter of it 15.2, a ninth 6.75, a sixteenth 3.8
    assert frequencies(100, 4) == [60, 15, 6, 3]
    assert frequencies(27, 5) == [16, 4, 1, 1, 0]
    assert frequencies(26, 4)[3] == 0


def test_words_are_shuffled(tokenizer):
    example, text = build(tokenizer, "cwe", 6000, 1)
    entries = re.findall(r"\d+\. ([a-z]+)", text.rpartition("appear most often.\n")[2])
    for part in (entries[:60], entries[-60:]):
        common = sum(word in example.references for word in part)
        assert 0 < common < 60
    example, text = build(tokenizer, "fwe", 6000, 1)
    words = text.partition("coded words.")[2].partition("\nQuestion")[0].split()
    for part in (words[40:100], words[-60:]):
        assert 0 < sum(word == "..." for word in part) < 60


def test_the_third_of_the_frequent_words_is_never_tied(tokenizer):
    for length in range(300, 480, 4):
        example, text = build(tokenizer, "fwe", length, 1)
        counts = Counter(re.findall(r" ([a-z]{6})(?= |\n)", text.partition("coded words.")[2].partition("Question")[0]))
        least = min(counts[word] for word in example.references)
        assert all(times < least for word, times in counts.items() if word not in example.references)
