"""Freed memory stays with the process; an environment that sets up an allocator keeps its word."""

import subprocess
import sys

import pytest

from draftlab import memory

# Page faults of the last ten of twenty rounds that make and free 40 MB a tensor.
FAULTS = """
import resource
import torch
from draftlab.memory import keep_freed_memory
def work():
    x = torch.ones(10_000_000)
    y = x + 1
    (x * y).exp().sum()
print(keep_freed_memory())
for turn in range(20):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
ALL = 10 * 4 * 40_000_000 // 4096  # pages of all tensors of ten rounds


def faults(**environment):
    environment = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    agreed, count = done.stdout.split()
    return agreed == "True", int(count)


def test_memory_that_was_freed_is_used_again_without_asking_the_system():
    kept, count = faults()
    if not kept:
        pytest.skip("this C library is not glibc")
    assert count < ALL / 4
    own, count = faults(MALLOC_PERTURB_="0")
    assert not own and count > ALL / 2


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_the_users_allocator_is_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "")
    assert memory.keep_freed_memory() is False


def test_only_linux_with_glibc_is_asked(monkeypatch):
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.keep_freed_memory() is False
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert memory.keep_freed_memory() is False
