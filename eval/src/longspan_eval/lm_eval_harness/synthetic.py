"""A synthetic task as lm-eval runs one: the same prompts and the same scores as ``longspan eval`` has."""

from __future__ import annotations

from typing import Any

from datasets import Dataset, Split
from lm_eval.api.task import ConfigurableTask

from longspan.errors import LongspanError
from longspan.loading.models import load_tokenizer
from longspan.text.encode import beginning
from longspan_eval.lm_eval_harness.tasks import SYNTHETIC, prompts, study_of

PROMPT, IDS = "prompt", "prompt_ids"


class SyntheticTask(ConfigurableTask):
    """One of ``SYNTHETIC``, at the lengths that ``--metadata`` says; its metric is called by the length, as in RULER.

    A document has the prompt as text, for any model, and as the tokens it was made of, for ours.

    Args:
        config: ``task``, its name, and ``metadata``: see ``study_of``, and the ``tokenizer`` (or ``pretrained``) that
            lengths are counted with.

    Raises:
        LongspanError: what was asked for cannot be, or nothing says which tokenizer.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        metadata = dict(config.get("metadata") or {})
        self._made = SYNTHETIC[config["task"]]
        self._study = study_of(self._made, metadata)
        name = metadata.get("tokenizer") or metadata.get("pretrained") or metadata.get("model")
        if not isinstance(name, str):
            raise LongspanError(
                f"{config['task']} makes prompts of exact lengths in tokens: pass --metadata tokenizer=NAME"
            )
        self._tokenizer_name = name
        lengths = [{"metric": str(n), "aggregation": "mean", "higher_is_better": True} for n in self._study.lengths]
        super().__init__(
            config={
                "task": config["task"],
                "output_type": "generate_until",
                "test_split": "test",
                "doc_to_text": PROMPT,
                "doc_to_target": "answer",
                "process_results": scored,
                "metric_list": lengths,
                "generation_kwargs": {"max_gen_toks": self._made.new_tokens, "until": [], "do_sample": False},
                "metadata": {**metadata, "version": self._made.version},
            }
        )

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **more: Any) -> None:
        """Make the documents; nothing is fetched."""
        tokenizer = load_tokenizer(self._tokenizer_name)
        lead = len(beginning(tokenizer))
        documents = [
            {
                PROMPT: tokenizer.decode(example.input_ids[lead:]),  # what models put before a text they add themselves
                IDS: example.input_ids,
                "answer": example.answer,
                "references": list(example.references),
                "task": self._made.name,
                "length": length,
                "seed": example.seed,
                "depth": example.depth,
            }
            for length, example in prompts(self._study, tokenizer)
        ]
        self.dataset = {"test": Dataset.from_list(documents, split=Split.TEST)}


def scored(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The score of an answer, 0 to 1, under its prompt's length."""
    from longspan_eval.tasks import TASKS

    return {str(doc["length"]): float(TASKS[doc["task"]].score(results[0], tuple(doc["references"])))}
