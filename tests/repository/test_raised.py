"""What a user can be refused for is a LongspanError: a plain ValueError says that longspan itself is wrong."""

from __future__ import annotations

import pytest

import longspan
from longspan.errors import GradientError, MethodError
from longspan.kernels.dispatch import check_impl
from longspan.memory import check_tier


@pytest.mark.parametrize(
    "call",
    [
        lambda: longspan.DCA(chunk_size=0),
        lambda: longspan.DCA(chunk_size="3"),
        lambda: longspan.DCA(angles=4),
        lambda: longspan.LongHeads(score="nothing"),
        lambda: longspan.DCA(chunk_size=9).resolve(4),
        lambda: longspan.PI(scale=0.5),
        lambda: longspan.YaRN(factor=2, target_length=9),
        lambda: longspan.METHODS["pi"](angles=longspan.YaRN()),
        lambda: check_impl("magic"),
        lambda: check_tier("attic", None),
        lambda: check_tier("disk", "/nowhere"),
    ],
)
def test_bad_input_is_a_longspan_error(call):
    with pytest.raises(longspan.LongspanError) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1


def test_who_catches_the_builtin_still_does():
    assert issubclass(longspan.LongspanError, ValueError)
    assert issubclass(GradientError, RuntimeError) and issubclass(MethodError, TypeError)
