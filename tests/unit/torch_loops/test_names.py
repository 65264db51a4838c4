"""hvdtrain.torch has what horovod.torch has, under the same names and with the same arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType

import horovod.torch
import horovod.torch.compression
import horovod.torch.elastic
import horovod.torch.functions
import horovod.torch.mpi_ops
import pytest
import torch.distributed

import hvdtrain.torch
import hvdtrain.torch.compression
import hvdtrain.torch.distributed
import hvdtrain.torch.functions
from hvdtrain.errors import UsageError

_INTERNAL = {"mpi_lib_v2", "optimizer", "sync_batch_norm", "check_installed_version"}
_INTERNAL |= {
    "get_average_backwards_compatibility_fun",
    "handle_average_backwards_compatibility",
    "num_rank_is_power_2",
}
_INTERNAL |= {"gpu_available", "mpi_lib", "annotations", "torch", "warnings", "Compression", "sampler", "state"}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (horovod.torch, hvdtrain.torch),
        (horovod.torch.mpi_ops, hvdtrain.torch.mpi_ops),
        (horovod.torch.elastic, hvdtrain.torch.elastic),
        (horovod.torch.compression, hvdtrain.torch.compression),
    ],
    ids=["torch", "mpi_ops", "elastic", "compression"],
)
def test_every_public_name_is_there_with_its_arguments(theirs: ModuleType, ours: ModuleType) -> None:
    names = [
        name
        for name, value in vars(theirs).items()
        if not (name.startswith(("_", "Horovod")) or name in _INTERNAL or name in ("torch", "List"))
        and getattr(value, "__module__", "").startswith("horovod")
    ]
    assert len(names) >= 3
    if theirs is horovod.torch.mpi_ops:  # scripts ask it for process sets
        names.append("_basics")
    for name in names:
        assert hasattr(ours, name), name
        wanted, found = getattr(theirs, name), getattr(ours, name)
        if inspect.isfunction(wanted) and inspect.isfunction(found):
            parameters = inspect.signature(found).parameters
            takes_all = {kind.kind for kind in parameters.values()} >= {inspect.Parameter.VAR_KEYWORD}
            missing = [each for each in inspect.signature(wanted).parameters if each not in parameters]
            assert takes_all or not missing or missing == ["args", "kwargs"], (name, missing)


def test_the_wrapper_has_the_arguments_of_torchs() -> None:
    wanted = inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters
    found = inspect.signature(hvdtrain.torch.DistributedDataParallel.__init__).parameters
    from hvdtrain.torch.data_parallel import _NOT_SUPPORTED, _WITHOUT_EFFECT

    assert set(wanted) <= {*found, *_NOT_SUPPORTED, *_WITHOUT_EFFECT}


def test_a_name_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'broadcast_parameters'"):
        hvdtrain.torch.broadcast_parameter  # noqa: B018
    with pytest.raises(AttributeError, match="torch.distributed itself may be used"):
        hvdtrain.torch.distributed.send  # noqa: B018
    with pytest.raises(UsageError, match="did you mean 'TorchState'"):
        hvdtrain.torch.elastic.TorchStates  # noqa: B018
    assert not hasattr(hvdtrain.torch, "broadcast_parameter")


def test_before_init_a_sentence_says_so() -> None:
    model = torch.nn.Linear(1, 1)
    for call in (
        lambda: hvdtrain.torch.DistributedOptimizer(torch.optim.SGD(model.parameters())),
        lambda: hvdtrain.torch.DistributedDataParallel(model),
        lambda: hvdtrain.torch.Checkpoint(model=model),
        hvdtrain.torch.stop_requested,
        hvdtrain.torch.distributed.get_rank,
        hvdtrain.torch.Mean().compute,
    ):
        with pytest.raises(UsageError, match=r"was used before hvd.init\(\)"):
            call()


def test_tensorflow_and_the_compiler_are_not_imported() -> None:
    code = "import sys, hvdtrain.torch; print({'tensorflow', 'keras', 'torch._dynamo'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
