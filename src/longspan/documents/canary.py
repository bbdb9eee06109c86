"""A model's logits right after a document: kept when it is written, computed anew when it is opened.

It catches what no hash does: another kernel, another library, a cache that is put together wrongly.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longspan.attend import Attender
from longspan.documents.contents import Contents
from longspan.documents.manifest import Canary
from longspan.documents.reading import forward
from longspan.errors import DocumentError, LongspanError
from longspan.hf.hooks import Attachment
from longspan.kernels import cpu
from longspan.kernels.dispatch import runs_in_c
from longspan.weights.models import kept_in

_TOKENS, _MOST = 2, 4  # that are read once more; that a manifest may ask for
_PLACES = 32  # logits that are kept


def make_canary(model: PreTrainedModel, attachment: Attachment, contents: Contents) -> Canary:
    """The logits after ``contents``, and how far they move when other kernels compute them."""
    tokens = contents.ids[-_TOKENS:]
    logits = _logits(model, attachment, contents, tokens)
    attender = attachment.attender
    if attender.impl != "auto" and runs_in_c(attender.impl):  # it runs or raises; "auto" may do without C
        attender = Attender(attender.method, attender.window, calibration=attender.calibration)
    with cpu.disabled():  # torch's operations: what another machine may differ by
        other = _logits(model, attachment, contents, tokens, attender)
    last, most = logits[-1], float(logits.abs().max())
    highest = last.topk(min(_PLACES, len(last))).indices
    # A few roundings of the largest, if this machine has only one way to compute them.
    rounding = 32 * torch.finfo(kept_in(model)).eps * most
    budget = 4 * float((other[-1] - last)[highest].abs().max()) + rounding
    return Canary(tuple(tokens.tolist()), _hash(logits), tuple(highest.tolist()), tuple(last[highest].tolist()), budget)


def check_canary(
    model: PreTrainedModel, attachment: Attachment, contents: Contents, canary: Canary, *, same_machine: bool
) -> None:
    """Compute the logits again: to the bit on the machine that wrote them, within the budget elsewhere.

    Raises:
        DocumentError: they are others.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    outside = any(token >= vocabulary for token in canary.tokens) or len(canary.places) != len(canary.values)
    if not canary.tokens or outside or len(canary.tokens) > _MOST:
        raise DocumentError("its canary cannot be computed; the manifest is damaged, read the text again")
    try:
        logits = _logits(model, attachment, contents, torch.tensor(canary.tokens))
    except LongspanError:  # says itself what it is about, such as a model in training mode
        raise
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise DocumentError(
            f"the model cannot continue from it ({' '.join(str(error).split())}); it does not match its manifest, read "
            "the text again"
        ) from error
    if any(place >= logits.shape[1] for place in canary.places):
        raise DocumentError("its canary lies outside the vocabulary; the manifest is damaged, read the text again")
    if _hash(logits) == canary.sha256:
        if logits[-1][list(canary.places)].tolist() != list(canary.values):
            raise DocumentError("its canary contradicts itself; the manifest is damaged, read the text again")
        return
    kept = torch.tensor(canary.values)
    far = float((logits[-1][list(canary.places)] - kept).abs().max()) if len(kept) else 0.0
    if same_machine:
        raise DocumentError(
            f"the model's logits differ from those stored with the document by up to {far:.3g}, on the same machine "
            "and kernels: the document's bytes or the model changed; read the text again"
        )
    if not far <= canary.budget:
        raise DocumentError(
            f"the model's logits differ from those stored with the document by {far:.3g}, and other kernels may "
            f"differ by at most {canary.budget:.3g}; read the text again on this machine"
        )


@torch.inference_mode()
def _logits(
    model: PreTrainedModel, attachment: Attachment, contents: Contents, tokens: Tensor, other: Attender | None = None
) -> Tensor:
    cache = contents.cache(model, attachment)
    with nullcontext() if other in (None, attachment.attender) else attachment.attended_by(other.run):
        return forward(model, tokens, cache, len(tokens)).cpu()


def _hash(logits: Tensor) -> str:
    return hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()
