"""Devices, memory and disk as they are, and a disk that is full or not ours."""

from __future__ import annotations

import os
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch

from draftlab.doctor import machine
from draftlab.doctor.finding import size_text
from draftlab.doctor.machine import DEMO_BYTES, devices, disk


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (999_700, "1 MB"), (1_640_000_000, "1.64 GB"), (3e15, "3e+03 TB")]
)
def test_sizes_are_three_digits(size, text):
    assert size_text(size) == text


def test_this_machine_has_a_cpu_and_memory():
    found = {finding.what: finding for finding in devices()}
    assert found["CPU"].found.endswith("cores") and f"{torch.get_num_threads()} threads" in found["CPU"].note
    assert not any(finding.is_missing for finding in found.values())


def test_memory_is_the_systems_own(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text(
        "MemTotal:   16000000 kB\nMemFree: 1 kB\nMemAvailable:  8000000 kB\nHugePages_Total: 0\n"
    )
    monkeypatch.setattr(machine, "MEMORY_FILE", tmp_path / "meminfo")
    assert machine._memory() == ("16.4 GB", "8.19 GB available")
    monkeypatch.setattr(machine, "MEMORY_FILE", tmp_path / "none")
    assert machine._memory()[0] == size_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def test_gpus_are_named_with_their_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (60e9 + index, 80e9))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="H", major=9, minor=0))
    gpus = [finding for finding in devices() if finding.what.startswith("GPU")]
    assert [gpu.what for gpu in gpus] == ["GPU cuda:0", "GPU cuda:1"]
    assert gpus[0].found == "H" and gpus[0].note == "60 GB of 80 GB free, compute capability 9.0"


def test_a_pytorch_that_cannot_be_imported_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = (finding for finding in devices() if finding.is_missing)
    assert finding.what == "PyTorch" and finding.needed


def test_a_disk_is_asked_where_the_folder_will_be(tmp_path, monkeypatch):
    usage = SimpleNamespace(free=DEMO_BYTES)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage if path == tmp_path else pytest.fail(f"{path} is not there")
    )
    assert not disk(tmp_path / "a" / "b").is_missing
    usage.free = DEMO_BYTES - 5e8
    full = disk(tmp_path / "a")
    assert full.needed and full.remedy.startswith("free 500 MB") and full.found == "2 GB free"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert disk(tmp_path).needed and disk(tmp_path).note == "not writable"
