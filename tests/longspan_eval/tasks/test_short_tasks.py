"""Tasks of a size that fits a small window: what their prompts say, and that the answers follow from them."""

from __future__ import annotations

import json
import random
import re

import pytest

from longspan_eval.tasks import TASKS, facts

SHORT = ("facts", "key-value", "vt-2-hops", "vt-2-hops-2-chains", "common-words")


def text_of(tokenizer, name, seed, length=1024):
    example = TASKS[name].build(tokenizer, length=length, seed=seed)
    return example, tokenizer.decode(example.input_ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", SHORT)
def test_a_longer_prompt_only_has_more_filler(tokenizer, name):
    (short, brief), (long, full) = (text_of(tokenizer, name, 4, length) for length in (1024, 4096))
    assert short.references == long.references
    for told in (r"VAR \w+ = ", r'"\w+": "', r"\d+\. [a-z]+"):
        if name not in ("facts",):  # whose prose may have such words
            assert len(re.findall(told, brief)) == len(re.findall(told, full))


def test_facts_differ_in_name_and_value_and_state_both():
    drawn = facts.draw(random.Random(1), 12)
    assert len({fact.name for fact in drawn}) == len({fact.value for fact in drawn}) == 12
    assert all(fact.name in fact.statement and fact.value in fact.statement for fact in drawn)
    assert all(fact.name in fact.question and fact.value not in fact.question for fact in drawn)


def test_the_fact_asked_for_is_about_the_person_that_the_question_names(tokenizer):
    for seed in range(20):
        example, text = text_of(tokenizer, "facts", seed)
        question = text.splitlines()[-2]
        (name,) = [name for name in facts.PEOPLE if name in question]
        told = [
            sentence for sentence in re.split(r"(?<=\.)\s", text) if name in sentence and "question" not in sentence
        ]
        assert len(told) == 1 and re.search(rf"\b{example.answer}\b", told[0])
        assert text.endswith("\nAnswer:")


def test_the_value_is_that_of_the_key(tokenizer):
    for seed in range(20):
        example, text = text_of(tokenizer, "key-value", seed)
        pairs = json.loads(text[text.index("{") : text.index("}") + 1])
        assert len(pairs) == len(set(pairs.values())) == 16
        assert pairs[re.findall('Key: "([^"]+)"', text)[-1]] == example.answer


@pytest.mark.parametrize(("name", "hops", "chains"), [("vt-2-hops", 2, 1), ("vt-2-hops-2-chains", 2, 2)])
def test_chains_lead_to_the_value(tokenizer, name, hops, chains):
    for seed in range(20):
        example, text = text_of(tokenizer, name, seed)
        # What is put in before the first line follows on a part of a word.
        links = re.findall(r"VAR (\w+) = (?:VAR )?(\d{5}|[A-Z]{5}|[A-Z]{3})", text)
        assert len(links) == (chains + 1) * (hops + 1)
        found = [variable for variable, source in links if source == re.findall(r"value (\d{5})", text)[-1]]
        while len(found) <= hops:
            found += [variable for variable, source in links if source == found[-1]]
        assert tuple(found) == example.references


def test_common_words_are_those_that_stand_there_most_often(tokenizer):
    for seed in range(20):
        example, text = text_of(tokenizer, "common-words", seed)
        listing = re.findall(r"\d+\. ([a-z]+)", text)
        counts = {word: listing.count(word) for word in listing}
        assert {word for word, count in counts.items() if count == 6} == set(example.references)
        assert sorted(counts.values()) == [1] * 5 + [6] * 5
