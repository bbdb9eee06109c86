"""lm-eval with longspan in it: nothing is cut to the window, batches are right, tasks score as ``longspan eval``."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("lm_eval", reason="lm-eval is not installed (pip install 'longspan[lm-eval]')")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

import longspan
from longspan.bundled import FOLDER, heldout_text, load_bundled
from longspan.errors import LongspanError
from longspan_eval.lm_eval_harness import cli
from longspan_eval.lm_eval_harness.arguments import UNLIMITED
from longspan_eval.lm_eval_harness.model import LongspanLM
from longspan_eval.lm_eval_harness.synthetic import IDS, PROMPT, SyntheticTask
from longspan_eval.lm_eval_harness.tasks import SYNTHETIC, prompts, study_of, write_tasks
from longspan_eval.session import Session
from longspan_eval.spec import parse_spec
from longspan_eval.studies.eval import Evaluation

LENGTHS = [700, 1024]


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch):
    """The command line deals with signals in a process of its own; this one goes on."""
    monkeypatch.setattr("longspan.signals.install", lambda program: None)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def tokenizer():
    return load_bundled()[1]


def model(method="dca", **more):
    return LongspanLM(pretrained="bundled", method=method, device="cpu", **more)


def requests(kind, *arguments, doc=None):
    return [Instance(kind, doc or {}, argument, n) for n, argument in enumerate(arguments)]


def text(tokenizer, tokens, begin=0):
    """About so many tokens of prose."""
    return tokenizer.decode(tokenizer(heldout_text()[begin : begin + 8 * tokens])["input_ids"][1 : tokens + 1])


def managed(tmp_path, **metadata):
    write_tasks(tmp_path)
    return TaskManager(
        include_path=str(tmp_path), include_defaults=False, metadata={"tokenizer": "bundled", **metadata}
    )


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize(
    ("method", "given", "limit"),
    [
        ("dca", {}, UNLIMITED),
        ("stock", {}, UNLIMITED),
        ("dca", {"max_length": 700}, 700),
        ("yarn", {"length": 2048}, 2048),
        ("pi", {"scale": 3}, 1536),
        ("self-extend", {"group": 4}, 4 * (512 - 128 + 32)),
        ("dca", {"window": 256, "length": 4096}, UNLIMITED),
        ("string:shift=100,local=20", {"window": 256}, 336),
    ],
)
def test_how_much_is_read_before_anything_is_cut(method, given, limit):
    assert model(method, **given).max_length == limit


def test_a_long_prompt_reaches_the_model_whole(tokenizer, monkeypatch):
    lm, seen = model(), []
    generate = lm.model.generate
    monkeypatch.setattr(lm.model, "generate", lambda **given: (seen.append(given["input_ids"]), generate(**given))[1])
    prompt = text(tokenizer, 1500)
    lm.generate_until(requests("generate_until", (prompt, {"max_gen_toks": 2, "until": []})))
    assert seen[0].tolist() == [tokenizer(prompt)["input_ids"]] and seen[0].shape[1] > 1400


METHODS = ["dca", "longheads:score=bounds", "esa", "dynamic-ntk", "infllm", "streaming-llm"]


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_answers_as_its_rows_one_by_one(method, tokenizer):
    texts = [text(tokenizer, tokens, 5000 * n) for n, tokens in enumerate((900, 640, 60))]
    asked = [(prompt, {"max_gen_toks": 6, "until": []}) for prompt in texts]
    alone, together = model(method), model(method, batch_size=3)
    one = alone.generate_until(requests("generate_until", *asked), disable_tqdm=True)
    three = together.generate_until(requests("generate_until", *asked), disable_tqdm=True)
    assert one == three and len(set(one)) == 3


@pytest.mark.parametrize("method", [*METHODS, "dca:length_scale=0.1", "stock"])
def test_likelihoods_of_a_batch_are_those_of_its_rows(method, tokenizer):
    pairs = [(text(tokenizer, tokens, 7000 * n), " and so it was.") for n, tokens in enumerate((900, 610, 577, 40))]
    lm = model(method, batch_size=4)
    found = lm.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    for (before, after), (loss, _) in zip(pairs, found, strict=True):
        ids, room = tokenizer(before + after)["input_ids"], len(tokenizer(before)["input_ids"])
        with torch.no_grad():
            logits = lm.model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
        direct = sum(float(logits[n - 1, ids[n]]) for n in range(room, len(ids)))
        assert loss == pytest.approx(direct, abs=2e-3)
    assert lm.batch_size == 4


def test_a_document_is_rolled_over_whole(tokenizer):
    document = text(tokenizer, 1200)
    (found,) = model().loglikelihood_rolling(requests("loglikelihood_rolling", (document,)), disable_tqdm=True)
    plain = load_bundled()[0]
    ids = [tokenizer.bos_token_id, *tokenizer(document)["input_ids"]]  # lm-eval puts its own before the tokenizer's
    longspan.extend(plain, "dca")
    with torch.no_grad():
        logits = plain(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    assert found == pytest.approx(sum(float(logits[n - 1, ids[n]]) for n in range(1, len(ids))), rel=1e-4)


BAD = {
    "an unknown method": ({"method": "magic"}, ["'magic'", "dca"]),
    "an unknown argument": ({"peft": "x"}, ["no parameter 'peft'", "chunk_size", "kv_tier", "max_length"]),
    "a length not told": ({"method": "yarn"}, ["yarn must know", "length=TOKENS"]),
    "a length of nonsense": ({"method": "auto", "length": "4k"}, ["length", "'4k'"]),
    "auto with a parameter": ({"method": "auto", "chunk_size": 3}, ["auto", "chunk_size"]),
    "a window of nonsense": ({"window": "big"}, ["window", "'big'"]),
    "a parameter that does not fit": ({"chunk_size": 9999}, ["chunk_size=9999"]),
    "a model that is not there": ({"pretrained": "./no/where"}, ["model folder does not exist"]),
    "an unknown dtype": ({"dtype": "int4"}, ["dtype= must be one of", "'int4'"]),
    "an unknown tier": ({"kv_tier": "moon"}, ["moon"]),
    "a tier for the stock model": ({"method": "stock", "kv_tier": "disk"}, ["stock", "kv_tier"]),
    "a batch to be found without a limit": ({"batch_size": "auto"}, ["batch_size=auto", "max_length=TOKENS"]),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_said(case):
    given, words = BAD[case]
    with pytest.raises(LongspanError) as raised:
        LongspanLM(**{"pretrained": "bundled", "device": "cpu", **given})
    assert all(word in str(raised.value) for word in words), raised.value


def test_what_was_attached_is_in_the_results():
    said = model("longheads:score=bounds", num_chunks=8).get_model_info()["longspan"]
    assert (said["method"], said["parameters"]["score"], said["parameters"]["num_chunks"]) == ("longheads", "bounds", 8)
    assert said["window"] == 512 and said["max_length"] == UNLIMITED
    json.dumps(said, allow_nan=False)
    assert model("stock").get_model_info()["longspan"]["method"] == "stock"


def test_auto_and_calibrations():
    assert model("auto", length=1024).report.method.name == "dca"
    assert "reduced" in model("esa", calibration="bundled").report.calibration
    assert model("auto", length=32 * 512, calibration="bundled").report.method.name == "esa"


# ---------------------------------------------------------------- our tasks


@pytest.mark.parametrize("name", ["longspan_passkey", "longspan_ruler-vt", "longspan_infinitebench-math-find"])
def test_documents_are_the_prompts_of_longspan_eval(name, tmp_path, tokenizer):
    asked = {"max_seq_lengths": LENGTHS, "samples": 2}
    task = managed(tmp_path, **asked).load([name])["tasks"][name]
    assert isinstance(task, SyntheticTask)
    made = list(prompts(study_of(SYNTHETIC[name], asked), tokenizer))
    docs = list(task.test_docs())
    assert [(doc["length"], doc[IDS], tuple(doc["references"])) for doc in docs] == [
        (length, example.input_ids, example.references) for length, example in made
    ]
    assert all(doc[PROMPT] == tokenizer.decode(doc[IDS][1:]) for doc in docs)


@pytest.mark.parametrize("method", ["dca", "stock"])
def test_scores_are_those_of_longspan_eval(method, tmp_path, tokenizer):
    names = ["passkey", "passkey-prose", "infinitebench-number", "ruler-vt"]
    asked = {"max_seq_lengths": LENGTHS, "samples": 2, "seed": 4}
    given = {"pretrained": "bundled", "method": method}
    found = simple_evaluate(
        "longspan", given, [f"longspan_{name}" for name in names], batch_size=2, device="cpu", log_samples=True,
        task_manager=managed(tmp_path, **asked),
    )  # fmt: skip
    plain, _ = load_bundled()
    tasks = tuple(SYNTHETIC[f"longspan_{name}"] for name in names)
    study = Evaluation(tasks, (parse_spec(method),), tuple(LENGTHS), samples=2, seed=4)
    session = Session(plain, tokenizer)
    for cell in study.cells():
        if cell.row != method:
            continue
        samples, length = [session.measure(one) for one in cell.measures], cell.measures[0].length
        name = f"longspan_{cell.table}"
        mean = sum(sample.correct for sample in samples) / len(samples)
        assert found["results"][name][f"{length},none"] == pytest.approx(mean)
        logged = {s["doc"]["seed"]: s for s in found["samples"][name] if s["doc"]["length"] == length}
        for sample in samples:
            answer = logged[sample.seed]["filtered_resps"][0]
            assert answer.startswith(sample.prediction.rstrip()), (answer, sample.prediction)
            assert logged[sample.seed][str(length)] == sample.correct
    score = found["results"]["longspan_passkey"]["1024,none"]
    assert score == 1.0 if method == "dca" else score < 1.0
    assert found["config"]["longspan"]["method"] == method


def test_prompts_are_read_as_the_tokens_they_were_made_of(tmp_path, monkeypatch, tokenizer):
    task = managed(tmp_path, max_seq_lengths=LENGTHS, samples=1).load(["longspan_passkey"])["tasks"]["longspan_passkey"]
    docs = list(task.test_docs())
    again = [tokenizer(doc[PROMPT])["input_ids"] for doc in docs]
    assert again != [doc[IDS] for doc in docs], "tokenized anew they were to be other tokens"
    lm, seen = model(batch_size=3), []
    monkeypatch.setattr(lm.model, "generate", lambda input_ids, **more: (seen.append((input_ids, more)), input_ids)[1])
    gen, other = {"max_gen_toks": 8, "until": []}, text(tokenizer, 50)
    asked = [Instance("generate_until", doc, (doc[PROMPT], gen), n) for n, doc in enumerate(docs)]
    asked.append(Instance("generate_until", {}, (other, gen), 2))
    # One that something was put before is another prompt, and is tokenized as any.
    asked.append(Instance("generate_until", docs[0], ("Listen. " + docs[0][PROMPT], gen), 3))
    lm.generate_until(asked, disable_tqdm=True)
    rows = [
        row[mask.bool()].tolist() for context, more in seen
        for row, mask in zip(context, more["attention_mask"], strict=True)
    ]  # fmt: skip
    wanted = [*(doc[IDS] for doc in docs), *(tokenizer(t)["input_ids"] for t in (other, asked[3].args[0]))]
    assert sorted(rows) == sorted(wanted)
    widths = [context.shape[1] for context, _ in seen]
    assert all((context[:, -1] != lm.tokenizer.pad_token_id).all() for context, _ in seen), "padded on the left"
    assert sorted(widths) == sorted([max(map(len, wanted)), min(map(len, wanted))])
    assert not lm._exact


def test_a_prompt_made_with_another_tokenizer_is_tokenized_anew(tokenizer, monkeypatch):
    lm, seen = model(), []
    monkeypatch.setattr(lm.model, "generate", lambda input_ids, **_: (seen.append(input_ids), input_ids)[1])
    doc = {PROMPT: "the pass key is", IDS: [5, 6, 7]}
    lm.generate_until(requests("generate_until", (doc[PROMPT], {"max_gen_toks": 1}), doc=doc), disable_tqdm=True)
    assert seen[0].tolist() == [tokenizer(doc[PROMPT])["input_ids"]]


def test_what_is_too_long_is_cut_from_the_left_and_said(tokenizer, monkeypatch, caplog):
    lm, seen = model(max_length=100), []
    monkeypatch.setattr(lm.model, "generate", lambda input_ids, **_: (seen.append(input_ids), input_ids)[1])
    ids = tokenizer(text(tokenizer, 300))["input_ids"]
    doc = {PROMPT: tokenizer.decode(ids[1:]), IDS: ids}
    lm.generate_until(requests("generate_until", (doc[PROMPT], {"max_gen_toks": 10}), doc=doc), disable_tqdm=True)
    assert seen[0].tolist() == [ids[-90:]] and "are cut to their last 90" in caplog.text


def test_a_tokenizer_is_needed():
    with pytest.raises(LongspanError, match="--metadata tokenizer=NAME"):
        SyntheticTask({"task": "longspan_passkey", "metadata": {}})


# ---------------------------------------------------------------- lm-eval's own tasks


def local_task(folder, tokenizer):
    """A task of lm-eval's own kind on a local file: a code in prose, asked for at the end."""
    lines = []
    for n in range(4):
        filler, code = text(tokenizer, 2_000, 9000 * n), str(52413 + 7001 * n)
        half = filler.index(". ", len(filler) // 2) + 2
        question = f"The pass key is {code}. Remember it. {code} is the pass key. "
        asked = f"{filler[:half]}{question}{filler[half:]} What is the pass key? The pass key is"
        lines.append(json.dumps({"question": asked, "answer": code}))
    (folder / "codes.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "codes.yaml").write_text(f"""
task: codes
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder / "codes.jsonl"}}}
output_type: generate_until
test_split: test
doc_to_text: question
doc_to_target: answer
generation_kwargs: {{until: ["."], max_gen_toks: 8}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ["[^0-9]"]}}]
""")


def test_a_task_on_a_local_file(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    local_task(tmp_path, tokenizer)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = {
        method: simple_evaluate(
            "longspan", {"pretrained": "bundled", "method": method}, ["codes"], batch_size=2, device="cpu",
            task_manager=manager,
        )["results"]["codes"]["exact_match,none"]
        for method in ("stock", "dca")
    }  # fmt: skip
    assert found["dca"] >= 0.75 and found["stock"] == 0.0


@pytest.mark.long
def test_the_command_line_with_rulers_own_task(tmp_path, monkeypatch, capsys):
    pytest.importorskip("wonderwords", reason="RULER of lm-eval makes its words with it")
    out = tmp_path / "out.json"
    method = "pretrained=bundled,method=longheads:score=bounds,num_chunks=8"
    asked = '{"max_seq_lengths": [1024], "samples": 3}'
    arguments = [
        *("longspan-lm-eval", "run", "--model", "longspan", "--model_args", method, "--metadata", asked),
        *("--tasks", "niah_single_1,longspan_passkey", "--limit", "3", "--batch_size", "3", "--output_path", str(out)),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    cli.main()
    table = capsys.readouterr().out
    assert "niah_single_1" in table and "longspan_passkey" in table
    (file,) = tmp_path.rglob("out_*.json")
    body = json.loads(file.read_text())
    assert body["results"]["longspan_passkey"]["1024,none"] == 1.0
    assert 0.0 <= body["results"]["niah_single_1"]["1024,none"] <= 1.0
    assert body["n-samples"]["niah_single_1"]["effective"] == 3
    assert body["config"]["longspan"]["parameters"]["num_chunks"] == 8
    assert body["config"]["model_args"]["pretrained"] == str(FOLDER)


def test_what_is_wrong_ends_in_one_line(monkeypatch, capsys):
    class Parser:
        def parse_args(self):
            return SimpleNamespace(model="longspan", model_args={"method": "magic"}, include_path=None, device=None)

        def execute(self, args):
            LongspanLM(pretrained="bundled", **args.model_args)

    monkeypatch.setattr("lm_eval._cli.HarnessCLI", Parser)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("longspan-lm-eval: error: unknown method 'magic'")
