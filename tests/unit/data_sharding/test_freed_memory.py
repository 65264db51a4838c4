"""Freed memory is kept, so that the next batch of the same size costs no page faults."""

from __future__ import annotations

import platform

import pytest
from support.processes import run_command

FAULTS = """
import resource, sys
from data_sharding.freed_memory import keep_freed_memory

if "keep" in sys.argv:
    keep_freed_memory()

def step():
    held = [b"x" * count for count in [2**20, 2**22, 2**24] * 6]  # 126 MiB
    del held

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    step()
before = faults()
for _ in range(10):
    step()
print((faults() - before) // 10)
"""
FEW = 20
"""Fewer than 126 MiB have of huge pages, where the kernel gives such without being asked."""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such thresholds")


def faults_of_a_step(*argv: str, environment: dict[str, str] | None = None) -> int:
    finished = run_command(["python", "-c", FAULTS, *argv], 60, environment, interpreter="fresh")
    assert finished.returncode == 0, finished.tail()
    return int(finished.stdout)


def test_a_step_gets_the_memory_of_the_one_before() -> None:
    assert faults_of_a_step("keep") < FEW
    assert faults_of_a_step() > FEW  # else the law would say nothing


def test_thresholds_of_the_users_are_left_as_they_are() -> None:
    mapped = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # each block is mapped, and its pages are new
    assert faults_of_a_step("keep", environment=mapped) > FEW
