"""A launcher of many hosts asks for as many open files as it needs, and for no more than the system allows."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ASK = """
import resource
from hvdtrain.open_files import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 2000))
allow_open_files({count})
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("count", "soft"), [(1000, 1256), (5000, 2000)])
def test_the_limit_is_raised_as_far_as_it_may_be(count: int, soft: int) -> None:
    asked = subprocess.run(
        [sys.executable, "-c", _ASK.format(count=count)], capture_output=True, text=True, timeout=60, check=True
    )
    assert asked.stdout.split() == [str(soft), "2000"]


def test_a_limit_that_suffices_stays() -> None:
    argv = [sys.executable, "-c", _ASK.format(count=1).replace("(64,", "(1024,")]
    asked = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert asked.stdout.split() == ["1024", "2000"]
