"""Attention modules whose rotation can be left to the attention, and others, told apart by their source."""

from __future__ import annotations

import pytest

from longspan.vllm.source import unsupported_reason


class Plain:
    scaled = norms = False

    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        if self.norms:
            q, k = self.norm(q), self.norm(k)
        q, k = self.rotary_emb(positions, q, k)
        if self.scaled:
            q = q * self.scale(positions)
        out = self.attn(q, k, v)
        return out  # noqa: RET504  # as vLLM writes it


class WithNormsBefore(Plain):
    norms = True


class ScaledBetween(Plain):
    scaled = True


class InABranch(Plain):
    rotates = True

    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        if self.rotates is not None and self.rotates:
            q, k = self.rotary_emb(positions, q, k)
        return self.attn(q, k, v)


class InNoBranch(InABranch):
    rotates = False


class UnknownBranch(Plain):
    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        if hidden.ndim > 2:
            q, k = self.rotary_emb(positions, q, k)
        return self.attn(q, k, v)


class NormAfter(Plain):
    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        q, k = self.rotary_emb(positions, q, k)
        q = self.norm(q)
        return self.attn(q, k, v)


class ScaledBeforeInABranch(Plain):
    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        q, k = self.rotary_emb(positions, q, k)
        if hidden.ndim > 2:
            q = q * self.scale(positions)
            return self.attn(q, k, v)
        return self.attn(q, k, v)


class NormsBeforeInABlock(Plain):
    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        q, k = self.rotary_emb(positions, q, k)
        with self.recorded():
            q, k = self.norm(q), self.norm(k)
            out = self.attn(q, k, v)
        return out  # noqa: RET504


class OtherNames(Plain):
    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        q_rot, k_rot = self.rotary_emb(positions, q, k)
        return self.attn(q_rot, k_rot, v)


class Swapped(Plain):
    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        q, k = self.rotary_emb(positions, q, k)
        return self.attn(k, q, v)


class Twice(Plain):
    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        q, k = self.rotary_emb(positions, q, k)
        q, k = self.rotary_emb(positions, q, k)
        return self.attn(q, k, v)


class Partly(Plain):
    def forward(self, positions, hidden):
        q, k, v = self.project(hidden)
        q = self.rotary_emb(positions, q)
        return self.attn(q, k, v)


@pytest.mark.parametrize("kind", [Plain, WithNormsBefore, InABranch])
def test_can_be_left_to_the_attention(kind):
    assert unsupported_reason(kind(), "rotary_emb", "attn") is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ScaledBetween, "straight to self.attn"),
        (NormAfter, "straight to self.attn"),
        (ScaledBeforeInABranch, "straight to self.attn"),
        (NormsBeforeInABlock, "straight to self.attn"),
        (Swapped, "straight to self.attn"),
        (InNoBranch, "no rotation"),
        (UnknownBranch, "does not rotate"),
        (OtherNames, "does not rotate"),
        (Partly, "does not rotate"),
        (Twice, "more than one rotation"),
    ],
)
def test_cannot(kind, reason):
    found = unsupported_reason(kind(), "rotary_emb", "attn")
    assert found is not None and reason in found and kind.__name__ in found


def test_without_a_source():
    class Made:
        forward = exec

    assert "cannot be read" in unsupported_reason(Made(), "rotary_emb", "attn")
