"""Fast bfloat16 is what the device says of itself."""

import pytest
import torch

from draftlab import hardware


@pytest.mark.parametrize(
    ("instructions", "fast"),
    [
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True, "avx512_bf16": False}, True),
        ({"avx512_f": True}, False),
        ({}, False),
    ],
)
def test_a_cpu_is_fast_if_it_names_an_instruction_for_bfloat16(monkeypatch, instructions, fast):
    monkeypatch.setattr(hardware, "cpu_capabilities", lambda: instructions)
    assert hardware.has_fast_bfloat16("cpu") is fast
    assert hardware.has_fast_bfloat16("cuda:1") is True
    assert hardware.has_fast_bfloat16("meta") is False


def test_the_machine_is_what_a_speed_depends_on():
    found = hardware.machine("cpu")
    assert found["device"] == "cpu" and found["machine"] and found["threads"] == torch.get_num_threads()
    assert found["torch"] == torch.__version__
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda"):
        hardware.machine("abacus")
