"""The image for CUDA, without a GPU and its driver: it has NCCL and no compiler, and trains on CPU tensors."""

from __future__ import annotations

import json

from engine import Engine

NCCL_IS_THERE = """
import json, torch, horovod.torch as hvd
hvd.init()
print(json.dumps({"nccl": hvd.nccl_built(), "cuda": hvd.cuda_built(), "torch": torch.version.cuda,
                  "gpu": torch.cuda.is_available(), "sum": hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist()}))
"""


def test_horovod_is_built_with_nccl_by_pypis_compiler_and_needs_no_driver(engine: Engine, cuda_image: str) -> None:
    check = engine.run(cuda_image, "horovodrun", "--check-build").stdout
    print(check)
    assert {"[X] PyTorch", "[X] MPI", "[X] Gloo", "[X] NCCL"} <= {line.strip() for line in check.splitlines()}
    said = json.loads(engine.run(cuda_image, "python", "-c", NCCL_IS_THERE).stdout.splitlines()[-1])
    print(said)
    assert said["nccl"] > 20000
    assert said["cuda"]
    assert said["torch"]
    assert said["sum"] == [1.0, 1.0, 1.0]


def test_compilers_stay_in_the_build(engine: Engine, cuda_image: str) -> None:
    """Neither their programs nor their packages. PyTorch's own packages bring the CUDA runtime and NCCL."""
    script = """
        for program in nvcc gcc g++ cc make cmake; do command -v $program && exit 3; done
        find / -xdev \\( -name nvcc -o -name cicc \\) 2> /dev/null
        python -m pip list --format freeze | grep -E '^nvidia-(cuda-nvcc|nvvm|cuda-crt|cuda-cccl)=='
        python -m pip check > /dev/null && python -m pip list --format freeze | grep -E '^nvidia-(cuda-runtime|nccl)'
    """
    run = engine.run(cuda_image, "/bin/bash", "-uc", script)
    print(run.stdout)
    assert [line.partition("==")[0] for line in run.stdout.splitlines()] == ["nvidia-cuda-runtime", "nvidia-nccl-cu13"]


def test_two_workers_train_on_cpu_tensors(engine: Engine, cuda_image: str, runs: str) -> None:
    flags = ("-v", f"{runs}:/runs")
    words = ("hvdtrain", "launch", "local", "-np", "2", "--", "train", "--max-steps", "60", "--output-dir", "/runs/few")
    print(engine.run(cuda_image, *words, flags=flags).stdout)
    result = json.loads(engine.run(cuda_image, "cat", "/runs/few/result.json", flags=flags).stdout)
    assert (result["framework"], result["world_size"], result["steps"]) == ("torch", 2, 60)
    assert result["metrics"]["accuracy"] > 0.9


def test_docker_run_image_trains_the_default_task(engine: Engine, cuda_image: str, runs: str) -> None:
    flags = ("-v", f"{runs}:/runs")
    engine.run(cuda_image, flags=flags, timeout=600)
    result = json.loads(engine.run(cuda_image, "/bin/sh", "-c", "cat runs/*/result.json", flags=flags).stdout)
    assert (result["status"], result["task"], result["world_size"]) == ("finished", "digits", 2)
