"""What perf and Horovod's timeline print, added up."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.profile import samples, timeline

PRINTED = """\
    40.00%|[JIT] tid 8143|[.] 0x00007f765e163131
    20.00%|libtorch_cpu.so|[.] at::native::AVX2::direct_copy_kernel(at::TensorIteratorBase&)
    10.00%|libtorch_cpu.so|[.] mkl_blas_avx512_sgemm_copyan
     9.00%|[kernel.kallsyms]|[k] _copy_to_iter
     6.00%|[kernel.kallsyms]|[k] __schedule
     5.00%|[kernel.kallsyms]|[k] clear_page_erms
     4.00%|libmpi.so.40|[.] 0x000000000020efce
     3.00%|mpi_lib_v2.cpython-311-x86_64-linux-gnu.so|[.] horovod::common::Run
     2.00%|libpython3.11.so.1.0|[.] _PyEval_EvalFrameDefault
     1.00%|libc.so.6|[.] malloc
"""


def test_samples_belong_to_one_part_each() -> None:
    assert samples.shares(PRINTED.splitlines()) == pytest.approx(
        {
            "layers": 0.5,
            "copies of tensors": 0.2,
            "copies between processes": 0.09,
            "waking, waiting, yielding": 0.06,
            "kernel, memory and the rest": 0.05,
            "MPI": 0.04,
            "Horovod": 0.03,
            "Python and its modules": 0.02,
            "C library": 0.01,
            "others": 0.0,
        }
    )


def events(tensor: int, *begun_and_ended: tuple[str, int, int]) -> list[dict[str, Any]]:
    both: list[dict[str, Any]] = []
    for name, begin, end in begun_and_ended:
        both.append({"ph": "B", "name": name, "ts": begin, "pid": tensor})
        both.append({"ph": "E", "ts": end, "pid": tensor})
    return both


@pytest.mark.parametrize("name", ["allreduce.hvdtrain.gradients.0", "hvdtrain_gradients_0_float32_0badcafe"])
def test_a_timeline_holds_the_gradients_of_each_step(name: str) -> None:
    names = {1: name, 2: "allreduce.hvdtrain.stop.vote"}
    told = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in names.items()]
    for step in range(2):
        begin = 1000 * step
        told += events(1, ("NEGOTIATE_ALLREDUCE", begin, begin + 100))
        told.append({"ph": "B", "name": "ALLREDUCE", "ts": begin + 100, "pid": 1})
        told += events(
            1, ("MEMCPY_IN_FUSION_BUFFER", begin + 110, begin + 120), ("MPI_ALLREDUCE", begin + 120, begin + 380)
        )
        told.append({"ph": "E", "ts": begin + 400, "pid": 1})
        told += events(2, ("NEGOTIATE_ALLREDUCE", begin, begin + 900), ("ALLREDUCE", begin, begin + 900))
    found = timeline.added_up(told, steps=2)
    assert found == pytest.approx((1.0, 100e-6, 300e-6, 10e-6))
