"""The table of docs/models.md: what ``extend`` does with every type of causal model that transformers has."""

import re
from pathlib import Path

import pytest
import torch

import longspan
from support.hf_models import VOCABULARY, WINDOW
from support.model_types import make_type, types
from support.releases import TRANSFORMERS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

OF_THIS_RELEASE = TRANSFORMERS == (5, 23)  # in another one a model may be rejected for another reason

# How a row of the table begins, and what the error says.
REASONS = {
    "no rotary positions": "receives no position_embeddings|no layer of .* called transformers' attention interface",
    "attention, masks or a cache in the model's own code": "computes attention in its own code|"
    "its own code computes with the attention mask|uses cache of its own",
    "an indexer of its own": "selects the keys of each query with an indexer of its own",
    "every layer with rotary positions": r"has no layer to attach to \(.*no layer sees more positions",
    "a state beside the keys": "hybrid layer, whose cache holds a state beside keys and values",
    "a layer runs several times": "runs several times in one forward",
}


def rows():
    """What the table says of each model type: the beginning of its row."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        match = re.match(r"\| (attaches|rejects: [^|]+?) \| (.+) \|$", line)
        if match:
            reason = next((r for r in REASONS if match[1].startswith(f"rejects: {r}")), None)
            assert (reason is None) == (match[1] == "attaches"), line
            for name in match[2].split(", "):
                yield name.split(" ")[0], reason


TABLE = dict(rows())


def test_the_table_has_no_type_twice_and_the_readme_its_numbers():
    assert len(TABLE) == len(list(rows()))
    extended = list(TABLE.values()).count(None)
    text = " ".join((PAGE.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert f"Of the {len(TABLE)} types of causal models in transformers 5.23, the tests extend {extended}," in text


@pytest.mark.long
@pytest.mark.skipif(not OF_THIS_RELEASE, reason="the table is of the types of transformers 5.23")
def test_the_table_has_every_type():
    assert set(TABLE) == types()


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("name", sorted(TABLE))
def test_what_extend_does(name):
    if name not in types():
        pytest.skip(f"this release of transformers has no {name}")
    model = make_type(name)
    vocabulary = min(VOCABULARY, model.config.get_text_config(decoder=True).vocab_size)
    ids = torch.randint(3, vocabulary, (2, 3 * WINDOW + 5), generator=torch.Generator().manual_seed(0))
    if TABLE[name] is not None:
        with pytest.raises(longspan.LongspanError, match=REASONS[TABLE[name]] if OF_THIS_RELEASE else None):
            longspan.extend(model, "dca", window=WINDOW)
        return
    stock = model(ids[:, :40]).logits
    for method in ("dca", "longheads"):
        assert longspan.extend(model, method, window=WINDOW).attached
        assert close(model(ids[:, :40]).logits, stock)
        whole = model(ids).logits
        cache = longspan.new_cache(model)
        pieces = ids.split([70, 100, ids.shape[1] - 176, *[1] * 6], dim=1)
        assert close(torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], dim=1), whole)
        padded, mask = ids.clone(), torch.ones_like(ids)
        padded[0], mask[0, :7] = padded[0].roll(7), 0
        assert close(model(padded, attention_mask=mask).logits[0, 7:], whole[0, :-7])
        longspan.restore(model)
        assert torch.equal(model(ids[:, :40]).logits, stock)


def close(ours, theirs):
    """Within the roundings of fp32, which layers with a state (Qwen3.5) add up over the tokens."""
    return float((ours - theirs).abs().max()) <= 2e-4 * float(theirs.abs().max())
