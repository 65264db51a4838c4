"""Sums of all sizes over Gloo, beside what they must be: gloo_sums.py writes "as they must be" on each rank."""

from __future__ import annotations

import os
from pathlib import Path

import horovod.torch as hvd
import torch

from hvdtrain.doctor.allreduce_times import DIRECT_BYTES

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64)
REFERENCES = {
    hvd.Sum: lambda parts: parts.sum(0),
    hvd.Average: lambda parts: parts.mean(0),
    hvd.Min: lambda parts: parts.amin(0),
    hvd.Max: lambda parts: parts.amax(0),
}


def lengths(dtype: torch.dtype) -> list[int]:
    """Around the size from which on sums go around the ring, where a ring's parts are uneven or empty, and large."""
    border = DIRECT_BYTES // ((hvd.size() - 1) * dtype.itemsize)
    return [1, 2, 7, border - 1, border, border + 1, 300_007, 1_000_003]


def check(dtype: torch.dtype, length: int, op: int, generator: torch.Generator) -> None:
    """Whole numbers, so that float16 holds each sum exactly; a mean is rounded once."""
    parts = torch.randint(-100, 100, (hvd.size(), length), generator=generator).to(torch.float64)
    name = f"{dtype}.{length}.{op}"
    found = hvd.allreduce(parts[hvd.rank()].to(dtype), op=op, name=name)
    expected = REFERENCES[op](parts).to(dtype)
    torch.testing.assert_close(
        found, expected, rtol=2 * torch.finfo(dtype).eps if dtype.is_floating_point else 0, atol=0
    )


def check_bits(length: int, generator: torch.Generator) -> None:
    """Sums that are rounded are the same on all ranks."""
    parts = torch.randn((hvd.size(), length), generator=generator)
    found = hvd.allreduce(parts[hvd.rank()], op=hvd.Average, name=f"bits.{length}")
    everywhere = hvd.allgather(found[None], name=f"all.{length}")
    assert (everywhere == everywhere[0]).all(), length


def shared_memory() -> int:
    """How many areas this process has mapped that ranks share."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("/memfd:gloo-")


if __name__ == "__main__":
    hvd.init()
    drawn = torch.Generator().manual_seed(1)
    for each in DTYPES:
        for count in lengths(each):
            for operation in REFERENCES:
                if operation != hvd.Average or each.is_floating_point:
                    check(each, count, operation, drawn)
    for count in lengths(torch.float32):
        check_bits(count, drawn)
    assert (shared_memory() > 0) == (os.environ["HOROVOD_GLOO_SHARED_MEMORY"] == "1")
    print("as they must be")
