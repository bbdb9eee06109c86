"""The tasks of local files: each runs on its sample, its prompt is the definition's to the letter, faults are named."""

from __future__ import annotations

import json
import pickle
import re

import pytest
from transformers import PreTrainedTokenizerFast

from longspan.bundled import FOLDER, heldout_text
from longspan_eval.datafile import SAMPLES, read_records
from longspan_eval.generate import read
from longspan_eval.tasks import TASKS

DATA = {name: task for name, task in TASKS.items() if task.data is not None}
EVERY = pytest.mark.parametrize("name", DATA)
CUT = [name for name in DATA if not name.startswith("ruler")]
OFFICIAL_TOKENS = {  # LongBench's config/dataset2maxlen.json
    "narrativeqa": 128, "qasper": 128, "multifieldqa-en": 64, "hotpotqa": 32, "2wikimqa": 32, "musique": 32,
    "gov-report": 512, "qmsum": 512, "multi-news": 512, "trec": 64, "triviaqa": 32, "samsum": 128,
    "passage-count": 32, "passage-retrieval-en": 32, "lcc": 64, "repobench-p": 64,
}  # fmt: skip
NOT_IN_E = {"narrativeqa", "musique", "qmsum"}


@pytest.fixture
def chatty():
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    tokenizer.chat_template = "{{ bos_token }}<user>{{ messages[0]['content'] }}</user><bot>"
    return tokenizer


def first(name):
    return read_records(DATA[name], SAMPLES)[0]


def said(name, tokenizer, record=None, length=4000, seed=0):
    example = DATA[name].build(tokenizer, length=length, seed=seed, record=record or first(name))
    return tokenizer.decode(example.input_ids)


def test_all_families_are_there():
    e = {f"longbench-e-{name}" for name in OFFICIAL_TOKENS.keys() - NOT_IN_E}
    assert len(e) == 13
    few = {f"fewshot-{name}{choice}" for name in ("qasper", "quality", "qmsum") for choice in ("", "-best", "-worst")}
    assert set(DATA) >= {f"longbench-{name}" for name in OFFICIAL_TOKENS} | e | few | {"fewshot-narrativeqa"}
    assert set(DATA) >= {"leval-toefl", "leval-quality", "leval-coursera", "leval-sfiction"}
    assert set(DATA) >= {"infinitebench-en-mc", "infinitebench-code-debug", "ruler-qa-1", "ruler-qa-2"}
    for name, tokens in OFFICIAL_TOKENS.items():
        assert DATA[f"longbench-{name}"].new_tokens == tokens


@EVERY
def test_runs_on_its_sample(name, tokenizer, model):
    task = pickle.loads(pickle.dumps(DATA[name]))
    assert task.version >= 1 and task.paper and task.summary and not task.at_depths and name == task.name
    for record in read_records(task, SAMPLES):
        assert json.loads(json.dumps(record)) == record  # plain JSON, to be keyed and sent as it is
        example = task.build(tokenizer, length=2000, seed=3, record=pickle.loads(pickle.dumps(record)))
        assert example == task.build(tokenizer, length=2000, seed=3, record=record)
        assert len(example.input_ids) <= 2000 - task.new_tokens and example.seed == 3
        assert example.depth is None and example.placed is None and example.scored == ()
        assert all(isinstance(right, str) and right for right in example.references)
        option = f"{example.references[-1]}. " if name == "infinitebench-code-debug" else example.references[0]
        assert task.score(option, example.references) == pytest.approx(1.0, abs=1e-7)
        assert task.score("?!", example.references) == 0.0
    until = task.until or (lambda text: False)
    reading = read(model, tokenizer, example.input_ids, max_new_tokens=4, until=until)
    assert 0.0 <= task.score(reading.text, example.references) <= 1.0


@EVERY
def test_a_record_is_needed_and_a_depth_refused(name, tokenizer):
    with pytest.raises(ValueError, match="none was given"):
        DATA[name].build(tokenizer, length=2000, seed=0)
    with pytest.raises(ValueError, match=r"depth 0\.5"):
        DATA[name].build(tokenizer, length=2000, seed=0, depth=0.5, record=first(name))


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("kind", ["tokenizer", "bytewise"])
def test_a_long_text_is_cut_to_fill_the_length_and_the_question_kept(name, kind, request):
    tokenizer = request.getfixturevalue(kind)
    task, record = DATA[name], dict(first(name))
    field = "document" if "document" in record else "context"
    record[field] = heldout_text()[:9000]
    short = {**record, field: "Short."}
    whole = said(name, tokenizer, short, length=8000)
    before, after = whole.split("Short.")
    for length in (1500, 1601) if kind == "tokenizer" else (5000, 5001):
        example = task.build(tokenizer, length=length, seed=0, record=record)
        assert len(example.input_ids) == length - task.new_tokens
        text = tokenizer.decode(example.input_ids)
        assert text.startswith(before) and text.endswith(after)
        kept = text[len(before) : -len(after)]
        end_lost, start_lost = kept[-9:] != record[field][-9:], kept[:9] != record[field][:9]
        assert (start_lost, end_lost) == {"f": (True, False), "l": (False, name.startswith("leval"))}.get(
            name[0], (False, False)
        )
    with pytest.raises(ValueError, match=r"tokens are too few: .* take \d+") as raised:
        task.build(tokenizer, length=task.new_tokens + 5, seed=0, record=record)
    least = int(str(raised.value).split()[-1])
    assert len(task.build(tokenizer, length=least, seed=0, record=record).input_ids) == least - task.new_tokens


# Prompts to the letter


def test_prompt_of_qasper(tokenizer):
    record = {"context": "CONTEXT {input}", "input": "INPUT {x}", "answers": ["a"], "all_classes": None, "length": 2}
    rule = (
        "as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered "
        'based on the information in the article, write "unanswerable". If the question is a yes/no question, answer '
        '"yes", "no", or "unanswerable". Do not provide any explanation.'
    )
    assert said("longbench-qasper", tokenizer, record) == (
        f"<s>You are given a scientific article and a question. Answer the question {rule}\n\n"
        "Article: CONTEXT {input}\n\n "
        f"Answer the question based on the above article {rule}\n\nQuestion: INPUT {{x}}\n\nAnswer:"
    )


def test_prompts_of_trec_and_code(tokenizer, chatty):
    record = {"context": "C", "input": "I", "answers": ["a"], "all_classes": ["a", "b"], "length": 2}
    trec = "<s>Please determine the type of the question below. Here are some examples of questions.\n\nC\nI"
    code = "<s>Please complete the code given below. \nC"
    for one in (tokenizer, chatty):  # no chat template here, nor for the other two
        assert said("longbench-trec", one, record) == trec
        assert said("longbench-lcc", one, record) == code + "Next line of code:\n"
        assert said("longbench-repobench-p", one, record) == code + "INext line of code:\n"
        for name in ("longbench-triviaqa", "longbench-samsum"):
            assert said(name, one, record).endswith("C\n\nI")
    assert DATA["longbench-trec"].build(chatty, length=900, seed=0, record=record).references == ("a", "a", "b")
    assert said("longbench-hotpotqa", chatty, record).endswith("Question: I\nAnswer:</user><bot>")


def test_prompt_of_leval(tokenizer):
    record = {"document": "D", "question": "Q\nA. x\nB. y", "answer": "A"}
    assert said("leval-coursera", tokenizer, record) == (
        "<s>Read the following text; a question on it comes at the end.\n\nD\n\nQuestion: Q\nA. x\nB. y\n\n"
        "One or several options are right. Answer with their letters alone, such as B or ACD.\nAnswer:"
    )


def test_prompt_of_infinitebench(tokenizer, chatty):
    record = {"context": "C", "input": "Q?", "answer": ["n"], "options": ["m", "n", "{o}", "p"]}
    book = "Read the book and answer the question.\n\nC\n\nQuestion: Q?\nA. m\nB. n\nC. {o}\nD. p\n\n"
    lead = "The letter of the correct answer is"
    assert said("infinitebench-en-mc", tokenizer, record) == f"<s>{book}{lead}"
    assert said("infinitebench-en-mc", chatty, record) == f"<s><user>{book}</user><bot>{lead}"
    assert said("infinitebench-code-debug", tokenizer, record) == (
        "<s>Following is a Python code where exactly one of the functions/methods has a deliberate error that makes it "
        "crash.\n\nC\n\nOptions:\nA. m\nB. n\nC. {o}\nD. p\n\nThe correct option is:"
    )
    for answer in ("n", ["n"], ["n", "B"]):
        example = DATA["infinitebench-en-mc"].build(tokenizer, length=900, seed=0, record={**record, "answer": answer})
        assert example.references == ("n", "B")


def test_prompt_of_few_shot(tokenizer):
    text = said("fewshot-qmsum-best", tokenizer)
    document = first("fewshot-qmsum-best")["document"]
    assert text == (
        f"<s>{document}\n\nQuestion: What did the users say about the menu? \nAnswer:They find it long."
        "\n\nQuestion: What did the users say about the remote control? \nAnswer:"
    )
    text = said("fewshot-narrativeqa", tokenizer)
    assert text.endswith("their father's watch.\n\nQuestion: What did Tomas sell? \nAnswer:")


def test_prompt_of_ruler(tokenizer, chatty):
    only = (
        "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    )
    text = said("ruler-qa-1", tokenizer)
    assert text.startswith(f"<s>{only}\n\nThe following are given documents.\n\nDocument 1:\n")
    assert text.endswith(f"\n\n{only}\n\nQuestion: Who built the Veldt Bridge? Answer:")
    assert said("ruler-qa-1", chatty).endswith("Veldt Bridge?</user><bot> Answer:")


# What single families do


@pytest.mark.parametrize(
    ("name", "text", "done"),
    [
        ("longbench-trec", "\nCity", False),
        ("longbench-trec", "\nCity\n", True),
        ("longbench-samsum", "\n\n", False),
        ("longbench-lcc", "x = 1", False),
        ("longbench-lcc", "x = 1\n", True),
        ("longbench-lcc", "```\n# so\n", False),
        ("longbench-lcc", "```\n# so\nx\n", True),
        ("longbench-lcc", "# so\n\n", True),
        ("fewshot-qasper", " yes\n\nQuestion", False),
        ("fewshot-qasper", " yes\n\nQuestion:", True),
        ("fewshot-qasper", "\nQuestion: a", False),
    ],
)
def test_answers_end_where_no_more_can_count(name, text, done):
    task = DATA[name]
    assert task.until(text) is done
    if done:  # then what follows changes nothing
        references = ("City", "City") if name == "longbench-trec" else ("x = 1",)
        more = " and City x = 1\nx = 1 Question: x = 1"
        assert task.score(text, references) == task.score(text + more, references)


def test_only_first_lines_count_where_longbench_says_so():
    for name in ("trec", "triviaqa", "samsum"):
        references = ("City", "City") if name == "trec" else ("City",)
        assert DATA[f"longbench-{name}"].score("\nCity\nDate", references) == pytest.approx(1.0, abs=1e-7)
        assert DATA[f"longbench-{name}"].score("Date\nCity", references) == 0.0
    assert DATA["longbench-hotpotqa"].score("Date\nCity", ("City",)) == pytest.approx(2 / 3)


def test_leval_has_a_record_a_question():
    records = read_records(DATA["leval-coursera"], SAMPLES)
    assert [record["answer"] for record in records] == ["AC", "B"]
    assert [record["answer"] for record in read_records(DATA["leval-quality"], SAMPLES)] == ["B"]
    assert DATA["leval-coursera"].score("A", ["AC"]) == 0.25
    assert DATA["leval-sfiction"].score("true", ["True [fact: False]"]) == 1.0
    assert DATA["leval-toefl"].score("A", ["AC"]) == 0.0


def test_sfiction_asks_by_the_story_and_by_the_facts(tokenizer):
    task = DATA["leval-sfiction"]
    records = read_records(task, SAMPLES)
    assert [record["answer"] for record in records] == ["True", "False", "False", "False"]
    assert len({record["question"] for record in records}) == 2
    for n, record in enumerate(records):
        prompt = said("leval-sfiction", tokenizer, record)
        assert record["question"] in prompt and ("Read the following text" in prompt) == (n % 2 == 0)
        assert ("by the facts" in prompt) == (n % 2 == 1) and prompt.endswith("Answer:")


def test_sfiction_asks_for_a_fact_without_naming_the_document(tokenizer):
    question = "1.\tWater burns, True or False? Answer this question based on the world described in the document."
    record = {"document": "On Vell water burns.", "question": question, "answer": "True"}
    assert question in said("leval-sfiction", tokenizer, record)
    assert said("leval-sfiction", tokenizer, {**record, "document": ""}) == (
        "<s>Question: 1.\tWater burns, True or False? Answer this question based on the facts of the real world.\n\n"
        "Answer True or False, by the facts of the real world and not by any story.\nAnswer:"
    )


def test_scrolls_questions_have_all_their_answers_and_their_options():
    (record,) = read_records(DATA["fewshot-narrativeqa"], SAMPLES)
    assert record["answers"] == ["Their father's watch", "a watch"] and record["question"] == "What did Tomas sell?"
    quality = first("fewshot-quality")
    assert quality["question"].split("\n")[0] == "Where did Tomas have the gear made?"
    assert quality["question"].endswith("(D) At Orr Point") and quality["document"].startswith("Marta kept")


def test_examples_random_best_and_worst(tokenizer):
    question = "Question: How many sensors were buried?"

    def examples(name, seed=0):
        return re.findall(r"Question: (.*?) \nAnswer:", said(name, tokenizer, seed=seed))

    best, worst = examples("fewshot-qasper-best"), examples("fewshot-qasper-worst")
    assert best[-1] == worst[-1] == question.removeprefix("Question: ")
    assert best[:2] == ["How many words does the corpus hold?", "How many sensors are used?"]  # the best one is nearest
    assert worst[:2] == ["Is the code published?", "Which language is studied?"]
    assert examples("fewshot-qasper-best", seed=1) == best
    drawn = {tuple(examples("fewshot-qasper", seed=seed)[:2]) for seed in range(20)}
    assert len(drawn) > 5 and all(len(set(pair)) == 2 for pair in drawn)
    assert examples("fewshot-qasper", seed=4) == examples("fewshot-qasper", seed=4)


def ruler_documents(text):
    return re.findall(r"Document (\d+):\n(.*?)\n\n(?=Document|Answer)", text, flags=re.S)


def test_ruler_has_own_passages_always_then_the_article_s_then_others(tokenizer):
    record, task = first("ruler-qa-1"), DATA["ruler-qa-1"]
    own = "The Veldt Bridge crosses the river Sarn at Holm. It was built in 1911 by Ada Roth."
    article = "Holm has a market on Mondays, where wool and rope are sold."
    seen, places = [], set()
    for length in range(150, 420, 9):
        try:
            text = said("ruler-qa-1", tokenizer, record, length, seed=length)
        except ValueError as error:
            assert not seen and int(str(error).split()[-1]) > length
            continue
        numbers, passages = zip(*ruler_documents(text), strict=True)
        assert numbers == tuple(str(n + 1) for n in range(len(passages))) and len({*passages}) == len(passages)
        assert own in passages and (len(passages) == 1 or article in passages)
        seen.append(len(passages))
        places.add(passages.index(own))
    assert seen == sorted(seen) and set(seen) >= {1, 2, 3, 6} and len(places) > 3
    with pytest.raises(ValueError, match="its own passages and 32 tokens for the answer take") as raised:
        task.build(tokenizer, length=40, seed=0, record=record)
    least = int(str(raised.value).split()[-1])
    assert len(task.build(tokenizer, length=least, seed=0, record=record).input_ids) == least - 32


def test_ruler_leaves_a_passage_out_where_together_they_take_more_than_one_by_one():
    class Frugal:
        """A token a character, but for a passage by itself."""

        bos_token_id = chat_template = None

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": list(text)[40 if text.startswith("\n\nDocument") else 0 :]}

    for length in range(600, 800, 9):
        ids = DATA["ruler-qa-1"].build(Frugal(), length=length, seed=length, record=first("ruler-qa-1")).input_ids
        assert length - 32 - 150 < len(ids) <= length - 32 and "built in 1911" in "".join(ids)


def test_ruler_reads_both_datasets():
    squad = read_records(DATA["ruler-qa-1"], SAMPLES)
    assert len(squad) == 4 and squad[1]["answers"] == [
        "Mondays",
        "on Mondays",
    ]  # the one without an answer is not asked
    hotpot = read_records(DATA["ruler-qa-2"], SAMPLES)
    assert [record["answers"] for record in hotpot] == [["Kessel"], ["Brand"]]
    assert [len(record["own"]) for record in hotpot] == [4, 3]
    assert len(pickle.dumps(squad[0])) < 2000  # the passages do not travel with the question
