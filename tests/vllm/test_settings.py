"""What is asked of longspan in vLLM's configuration, and when nothing is."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from longspan import DCA, LongHeads, YaRN
from longspan.errors import AttachError, LongspanError
from longspan.vllm.settings import asked, check_page_size, paged

DUAL = SimpleNamespace(dual_chunk_attention_config={"chunk_size": 64, "local_size": 16})


@pytest.mark.parametrize("additional", [None, {}, {"other": {"method": "dca"}}])
def test_nothing_is_asked(additional):
    assert asked(additional) is None and asked(additional, SimpleNamespace()) is None
    assert asked(additional, SimpleNamespace(dual_chunk_attention_config=None)) is None


def test_a_key_that_is_misspelt_is_no_silence():
    with pytest.raises(LongspanError, match="has 'longspann'; the key that longspan reads is 'longspan'"):
        asked({"longspann": "dca"})


def test_a_model_with_dual_chunks_asks_by_itself():
    found = asked({}, DUAL)
    assert found.method == DCA() and "dual_chunk_attention_config" in found.reason


def test_pages_leave_out_the_length_scale_of_a_config_and_say_so():
    qwen = DCA(chunk_size=48, local_window=16, window=65, length_scale=DCA.QWEN_1M)
    method, notes = paged(DCA(), qwen)
    assert method == DCA(length_scale=0) and len(notes) == 1 and "config, 0.1: pages" in notes[0]
    for asked_for, prescribed in ((DCA(length_scale=0.1), qwen), (LongHeads(), qwen)):
        assert paged(asked_for, prescribed) == (asked_for, [])
    assert paged(DCA(), None) == (DCA(length_scale=0), [])


@pytest.mark.parametrize("value", [None, False])
def test_a_model_with_dual_chunks_can_be_left_alone(value):
    assert asked({"longspan": value}, DUAL) is None


@pytest.mark.parametrize("given", [{"method": "dca", "chunk_size": 300}, {"chunk_size": 300}, "dca:chunk_size=300"])
def test_parameters(given):
    found = asked({"longspan": given})
    assert found.method == DCA(chunk_size=300) and found.window is None and found.impl == "auto"


@pytest.mark.parametrize(
    "given",
    [
        {"window": 4096, "impl": "torch", "angles": "yarn", "factor": 4},
        "dca:window=4096,impl=torch,angles=yarn,factor=4",
    ],
)
def test_window_kernel_and_angles(given):
    """A text says the same as an object: ``window`` is the trained one in both."""
    found = asked({"longspan": given})
    assert (found.method, found.window, found.impl) == (DCA(angles=YaRN(factor=4)), 4096, "torch")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "dcaa"}, "unknown method 'dcaa'.*did you mean 'dca'"),
        ({"chunk": 300}, "dca has no parameter 'chunk'.*chunk_size"),
        ({"window": 0}, "window must be a number of tokens"),
        ("dca:window=4k", "window must be an integer number of tokens, not '4k'"),
        ("dca:window=4096,window=2048", "window is set twice"),
        ({"impl": "cuda"}, "impl must be one of"),
        ({"angles": {"type": "yarn", "factor": 4}}, "unknown angles .*choose one of pi, ntk, dynamic-ntk, yarn"),
        ({"angles": 4}, "unknown angles '4'; choose one of"),
        (["dca"], "it must be an object"),
        ({"chunk_size": -1}, "chunk_size ≥ 1"),
    ],
)
def test_what_is_wrong_is_said_with_the_place(given, message):
    with pytest.raises(LongspanError, match=f"longspan in additional_config: .*{message}"):
        asked({"longspan": given})


@pytest.mark.parametrize(("page", "fits"), [(128, 32), (24, 16), (64, 32)])
def test_a_chunk_is_made_of_whole_pages(page, fits):
    selection = LongHeads(score="bounds", remap="dca", chunk_length=32, num_chunks=16).resolve(512).selection(512)
    with pytest.raises(AttachError, match=rf"chunks of 32 tokens, and pages have {page}; .* --block-size {fits}, or"):
        check_page_size(selection, page)
    check_page_size(selection, fits)
    check_page_size(None, page)


def test_neither_longspan_nor_its_settings_import_vllm():
    code = "import sys, longspan, longspan.vllm.settings, longspan.paged.attention; print('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
