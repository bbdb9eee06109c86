"""Training: its tasks can be answered from their text and keep to their own words; the script runs and resumes."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TRAINING = Path(__file__).parents[2] / "training"
sys.path.insert(0, str(TRAINING))

import facts  # noqa: E402
from documents import HELDOUT_WORDS, Draft  # noqa: E402
from llama import Llama, Shape, export, restore  # noqa: E402
from longspan_eval.tasks import facts as evaluated_facts  # noqa: E402
from longspan_eval.tasks.words import ADJECTIVES, NOUNS  # noqa: E402
from optimizer import Muon, orthogonalized  # noqa: E402
from tasks import TASKS, Sampler, wordings  # noqa: E402
from tokenizer import train_tokenizer  # noqa: E402
from window_tasks import MAGIC, WINDOW_TASKS  # noqa: E402

TEXT = """The quick river runs under a small bridge near the mill. It is a place where people meet in spring.
Nothing here is about numbers. The method returns whatever was passed to it, unless the flag was set before.
"""


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT * 20, *wordings()])


@pytest.fixture(scope="module")
def sampler(tokenizer):
    return Sampler(tokenizer, [TEXT * 60], seed=3)


def answers(tokenizer, ids, marks):
    """What each run of answer tokens says, and the text before it."""
    for n in range(1, len(ids)):
        if marks[n] == Draft.ANSWER and marks[n - 1] != Draft.ANSWER:
            end = next((m for m in range(n, len(ids)) if marks[m] != Draft.ANSWER), len(ids))
            yield tokenizer.decode(ids[:n]), tokenizer.decode(ids[n:end]), end == len(ids)


@pytest.mark.parametrize(("length", "least"), [(64, 40), (128, 40), (256, 80), (512, 150)])
@pytest.mark.parametrize("kind", [*TASKS, "copy", "recall", "prose"])
def test_a_row_has_its_length_and_a_mark_for_each_token(sampler, kind, length, least):
    for _ in range(5):
        ids, marks = sampler.row(kind, length, least)
        assert len(ids) == len(marks) == length
        assert set(marks) <= {Draft.IGNORE, Draft.TEXT, Draft.ANSWER}


@pytest.mark.parametrize("kind", TASKS)
def test_every_word_of_an_answer_stands_in_the_text_before_it(sampler, tokenizer, kind):
    seen = 0
    for _ in range(12):
        for before, answer, cut in answers(tokenizer, *sampler.row(kind, 512, 150)):
            if cut:
                continue
            seen += 1
            # A fact's answer says the relation in words of its own; what it is about and its value are in the text.
            words = [answer.split()[-1].strip('".')] if kind == "facts" else re.findall(r"[\w-]{3,}", answer)
            assert all(word in before for word in words if word != "and")
    assert seen


@pytest.mark.parametrize("kind", TASKS)
def test_an_answer_ends_its_line(sampler, tokenizer, kind):
    """Or a model goes on after it with whatever it likes."""
    ends = [answer for _, answer, cut in answers(tokenizer, *sampler.row(kind, 512, 150)) if not cut]
    assert ends and all(answer.endswith("\n") and answer.count("\n") == 1 for answer in ends)


def test_magic_values_belong_to_the_key_that_is_asked_for(sampler, tokenizer):
    checked = 0
    for _ in range(40):
        for before, answer, cut in answers(tokenizer, *sampler.row("magic", 512, 150)):
            asked = re.search(r"\nWhat is the code for ([\w -]+)\? The code for \1 is$", before)
            if asked and not cut:
                told = re.findall(rf"the code for {re.escape(asked[1])} is ([\w-]+)\.", before)
                assert told[-1] == answer.strip(" .\n")
                checked += 1
    assert checked


def test_json_answers_are_the_keys_values(sampler, tokenizer):
    for _ in range(10):
        for before, answer, cut in answers(tokenizer, *sampler.row("json", 512, 150)):
            if not cut:
                data = json.loads(before[before.rindex("{") : before.rindex("}") + 1])
                assert data[re.findall(r'"([^"]+)"', before)[-1]] == re.findall(r'"([^"]+)"', answer)[-1]


def test_numbers_have_their_length_and_some_have_equal_digits_in_a_row(sampler):
    numbers = [sampler.material.digits(5, 5) for _ in range(900)]
    assert all(len(number) == 5 and number.isdigit() and number[0] != "0" for number in numbers)
    # Of numbers of any digits 4% have three equal ones in a row.
    assert sum(bool(re.search(r"(.)\1\1", number)) for number in numbers) / 900 > 0.12


def test_chains_are_followed(sampler, tokenizer):
    for _ in range(10):
        for before, answer, cut in answers(tokenizer, *sampler.row("variables", 512, 150)):
            if cut:
                continue
            value = re.findall(r"value (\d{5})", before)[-1]
            links = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", before)
            found = [name for name, source in links if source == value]
            while len(found) < len(answer.split()):
                found += [name for name, source in links if source == found[-1]]
            assert found == answer.split()


def test_common_words_are_those_that_stand_there_most_often(sampler, tokenizer):
    for _ in range(10):
        for before, answer, cut in answers(tokenizer, *sampler.row("common", 512, 150)):
            if cut:
                continue
            listing = re.findall(r"\d+\. ([a-z]+)", before[before.rindex("\n1. ") :].rsplit("\n", 1)[0])
            named = re.findall(r"\d+\. ([a-z]+)", answer)
            counts = {word: listing.count(word) for word in listing}
            rest = max((n for word, n in counts.items() if word not in named), default=0)
            assert min(counts[word] for word in named) > rest


def test_training_never_has_the_words_of_the_evaluation(sampler):
    rng = random.Random(0)
    drawn = {sampler.material.word() for _ in range(3000)}
    assert not drawn & (HELDOUT_WORDS | set(ADJECTIVES) | set(NOUNS))
    told = facts.training_facts(rng, 12) + [fact for _ in range(200) for fact in facts.training_facts(rng, 6)]
    assert not {fact.name for fact in told} & set(evaluated_facts.PEOPLE)
    assert not {fact.value for fact in told} & {
        value for relation in evaluated_facts.RELATIONS for value in relation.values
    }


def test_made_up_words_are_none_of_the_evaluations():
    rng = random.Random(0)
    drawn = {facts.made_up(rng) for _ in range(200_000)}
    said = {*evaluated_facts.PEOPLE, *(value for one in evaluated_facts.RELATIONS for value in one.values)}
    assert not drawn & {word.lower() for word in said}


def test_training_never_has_the_wordings_of_the_evaluation():
    for relation, evaluated in zip(facts.RELATIONS, evaluated_facts.RELATIONS, strict=True):
        assert evaluated.statement not in relation.statements
        assert evaluated.question not in relation.questions
        assert not set(relation.values) & set(evaluated.values)
        assert bool(relation.values) == bool(evaluated.values)  # the same relation: both are numbers, or neither is
    assert evaluated_facts.FRAME not in facts.FRAMES
    told = " ".join(relation.statement for relation in evaluated_facts.RELATIONS)
    assert not [part for part in (*facts.OPENINGS, *facts.CLOSINGS) if part.strip() and part.strip() in told]
    assert not any("locker" in text for text in wordings())


def test_the_heldout_wording_fits_its_length_and_holds_its_answer(tokenizer):
    for seed in range(3):
        example = MAGIC.build(tokenizer, length=1024, seed=seed)
        assert len(example.input_ids) == 1024 - MAGIC.new_tokens
        assert example.answer in tokenizer.decode(example.input_ids)
        assert MAGIC.build(tokenizer, length=1024, seed=seed) == example
    assert MAGIC.score(f" {example.answer}.\n", example.references) == 1.0
    assert MAGIC.score(" nothing of it.\n", example.references) == 0.0


def test_evaluated_tasks_are_those_of_longspan_eval_and_one_more():
    assert {"facts", "key-value", "passkey-prose", "ruler-niah-multiquery", "magic-heldout"} <= set(WINDOW_TASKS)


@pytest.mark.parametrize("tokens", [9, 128, 300], ids=["less than a block of queries", "one block", "three blocks"])
def test_the_model_is_the_one_that_transformers_computes(tokens):
    torch.manual_seed(0)
    model = Llama(Shape(vocabulary=50, hidden=64, inner=96, layers=2, heads=2, kv_heads=1))
    ids = torch.randint(0, 50, (2, tokens))
    exported = export(model)
    again = Llama(model.shape)
    restore(again, exported)
    with torch.no_grad():
        ours, theirs = model.logits(model(ids)), exported(input_ids=ids).logits
        torch.testing.assert_close(again.logits(again(ids)), ours, atol=0, rtol=0)
        with torch.autocast("cpu", torch.bfloat16):
            half = model.logits(model(ids)).float()
    assert 0 < (half - ours).abs().mean() < 0.02 * ours.abs().mean()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (32, 32)])
def test_an_orthogonalized_matrix_has_singular_values_near_one(shape):
    values = torch.linalg.svdvals(orthogonalized(torch.randn(*shape, generator=torch.Generator().manual_seed(1))))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_muon_lowers_a_loss():
    torch.manual_seed(0)
    model = Llama(Shape(vocabulary=20, hidden=32, inner=32, layers=1, heads=1, kv_heads=1))
    optimizer, ids, losses = Muon(model), torch.randint(0, 20, (4, 8)), []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model.logits(model(ids)).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step(0.02)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


# Three steps of each phase, with a stop on the way and a checkpoint after every step.
SHORT = """
import sys
import train
train.SAVE_SECONDS = -1
stop_after = int(sys.argv.pop())
step, taken = train.Muon.step, []
def counted(self, rate):
    step(self, rate)
    taken.append(rate)
    if len(taken) > stop_after:
        raise KeyboardInterrupt
train.Muon.step = counted
train.main()
"""


@pytest.mark.long
def test_every_phase_runs_stops_resumes_and_the_result_loads(tmp_path):
    schedule = tmp_path / "steps.json"
    names = ("copy-64", "tasks-128", "tasks-256", "tasks-512", "tasks-512-again")
    schedule.write_text(json.dumps(dict.fromkeys(names, 2)))
    environment = {"PYTHONPATH": str(TRAINING), "OMP_NUM_THREADS": "1", "PATH": ""}

    def train(out, stop_after, *options):
        command = [sys.executable, "-c", SHORT, "--out", str(out), "--schedule", str(schedule), *options]
        command.append(str(stop_after))
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert train(tmp_path / "a", 4).returncode != 0
    assert train(tmp_path / "a", 99).returncode == 0
    assert "resumed after 4 steps" in (tmp_path / "a" / "train.log").read_text()
    assert "is finished" in train(tmp_path / "a", 99).stdout
    assert json.loads((tmp_path / "a" / "schedule.json").read_text()) == dict.fromkeys(names, 2)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert model.config.max_position_embeddings == 512
    assert tokenizer.decode(tokenizer("The pass key is 12345.", add_special_tokens=False).input_ids).endswith("12345.")
    # The same steps without a stop make the same weights.
    assert train(tmp_path / "b", 99).returncode == 0
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, again.state_dict()[name], atol=1e-6, rtol=1e-6)
    # From those weights only the last phase is run.
    assert train(tmp_path / "c", 99, "--begin", str(tmp_path / "a"), "--bfloat16").returncode == 0
    taken = json.loads((tmp_path / "c" / "schedule.json").read_text())
    assert taken == dict.fromkeys(names, 0) | {"tasks-512-again": 2}
