"""The commands that are compared, and which of them make one table."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.step.workload import MODELS, SEED, Model

_BIN = Path(sys.executable).parent
_PYTHON = sys.executable
_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
_MPIRUN = (str(_BIN / "mpirun"), *_ROOT, "--oversubscribe", "--bind-to", "none")
_YIELD = ("--mca", "mpi_yield_when_idle", "1")
_GLOO = (str(_BIN / "horovodrun"), "--gloo")
_LOCAL = (_PYTHON, "-m", "hvdtrain", "launch", "local")
_TORCHRUN = (str(_BIN / "torchrun"),)


@dataclass(frozen=True)
class Arm:
    """One command line.

    Args:
        label: for people.
        runs: what the workers run, for people.
        launcher: without the number of workers, which follows `np_flag` after it; none: one process.
        np_flag: as the launcher calls it.
        command: what the workers run.
        sums_gradients: else each process trains for itself, and so its loss is another one.
    """

    label: str
    runs: str
    launcher: tuple[str, ...]
    np_flag: str
    command: tuple[str, ...]
    sums_gradients: bool = True

    @property
    def alone(self) -> bool:
        """Whether it is one process, however many workers the others have."""
        return not self.launcher

    def argv(self, np: int, model: str, counts: tuple[int, int, int]) -> list[str]:
        """The command for `np` workers."""
        flags = ("--num-warmup-batches", "--num-batches-per-iter", "--num-iters")
        words = [word for flag, count in zip(flags, counts, strict=True) for word in (flag, str(count))]
        if "bench" in self.command:
            words += ["--batch-size", str(MODELS[model].batch), "--seed", str(SEED), "--json"]
        workers = [] if self.alone else [*self.launcher, self.np_flag, str(np)]
        return [*workers, *self.command, "--model", model, *words]

    def under(self, module: str) -> Arm:
        """The same with each worker's `-m MODULE ...` given to another module, which starts it."""
        start = self.command.index("-m")
        return replace(self, command=(*self.command[:start], "-m", module, *self.command[start:]))


def mpirun_argv(np: int) -> list[str]:
    """What starts so many workers of this Python, as the arms under mpirun are started."""
    return [*_MPIRUN, "-np", str(np), _PYTHON]


def _ours(module: str) -> tuple[str, ...]:
    return (_PYTHON, "-m", "hvdtrain", *_bench(module))


def _bench(module: str) -> tuple[str, ...]:
    return ("bench", "step", "--task", f"benchmarks.step.{module}")


def _by_hand(module: str, folder: str = "step") -> tuple[str, ...]:
    return (_PYTHON, "-m", f"benchmarks.{folder}.{module}")


_DDP = ("-m", "benchmarks.step.ddp_torch")

_TORCH: Mapping[str, Arm] = {
    "hvdtrain": Arm("mpirun", "hvdtrain", _MPIRUN, "-np", _ours("torch_task:TorchStep")),
    "hvdtrain_gloo": Arm("horovodrun --gloo", "hvdtrain", _GLOO, "-np", _ours("torch_task:TorchStep")),
    "hvdtrain_local": Arm(
        "hvdtrain launch local (Gloo)", "hvdtrain", _LOCAL, "-np", ("--", *_bench("torch_task:TorchStep"))
    ),
    "hvdtrain_loop": Arm(
        "mpirun", "hvdtrain.torch by hand", _MPIRUN, "-np", (*_by_hand("horovod_torch"), "--look-alike")
    ),
    "hvdtrain_loop_gloo": Arm(
        "horovodrun --gloo", "hvdtrain.torch by hand", _GLOO, "-np", (*_by_hand("horovod_torch"), "--look-alike")
    ),
    "hvdtrain_ddp": Arm("torchrun", "hvdtrain's DDP by hand", _TORCHRUN, "--nproc-per-node", (*_DDP, "--look-alike")),
    "horovod": Arm("mpirun", "Horovod by hand", _MPIRUN, "-np", _by_hand("horovod_torch")),
    "horovod_yield": Arm(
        "mpirun, mpi_yield_when_idle", "Horovod by hand", (*_MPIRUN, *_YIELD), "-np", _by_hand("horovod_torch")
    ),
    "ddp": Arm("torchrun", "DDP (Gloo) by hand", _TORCHRUN, "--nproc-per-node", _DDP),
    "ddp_views": Arm(
        "torchrun", "DDP (Gloo) by hand, bucket views", _TORCHRUN, "--nproc-per-node", (*_DDP, "--bucket-views")
    ),
}
EXCHANGING = Arm(
    "mpirun",
    "torch by hand, mpi4py sums after the backward pass",
    _MPIRUN,
    "-np",
    _by_hand("exchanging", "scaling"),
    sums_gradients=False,
)
"""Two processes of which each trains by itself and, in each step, sums as many bytes as its gradients have."""
_KERAS = _ours("keras_task:KerasStep")
_SEVERAL = ("--steps-per-call", "10")
_TENSORFLOW: Mapping[str, Arm] = {
    "hvdtrain": Arm("mpirun", "hvdtrain", _MPIRUN, "-np", _KERAS),
    "hvdtrain_several": Arm("mpirun", "hvdtrain --steps-per-call 10", _MPIRUN, "-np", (*_KERAS, *_SEVERAL)),
    "hvdtrain_compile": Arm("mpirun", "hvdtrain --compile", _MPIRUN, "-np", (*_KERAS, "--compile")),
    "horovod": Arm("mpirun", "Horovod by hand", _MPIRUN, "-np", _by_hand("horovod_tensorflow")),
    "horovod_yield": Arm(
        "mpirun, mpi_yield_when_idle", "Horovod by hand", (*_MPIRUN, *_YIELD), "-np", _by_hand("horovod_tensorflow")
    ),
    "fit_exchange": Arm(
        "mpirun",
        "Keras' own fit in each, then mpi4py sums as many bytes as the gradients have",
        _MPIRUN,
        "-np",
        (*_by_hand("keras_fit"), "--exchange"),
        sums_gradients=False,
    ),
    "fit": Arm("one process, no launcher", "Keras' own fit", (), "", _by_hand("keras_fit"), sums_gradients=False),
}
_BF16 = ("--precision", "bf16", "--compile")
_HAND = _by_hand("alone_torch")
_TORCH_ON_GPU: Mapping[str, Arm] = {
    "hvdtrain": Arm("one process", "hvdtrain", (), "", (*_ours("torch_task:OnGpu"), *_BF16, "--channels-last")),
    "hand": Arm("one process", "torch by hand, compiled", (), "", _HAND),
    "hand_autotuned": Arm(
        "one process", "torch by hand, max-autotune", (), "", (*_HAND, "--compile-mode", "max-autotune")
    ),
    "ddp": Arm("one process", "DDP (NCCL) by hand, compiled", (), "", (*_HAND, "--ddp")),
}
_TENSORFLOW_ON_GPU: Mapping[str, Arm] = {
    "hvdtrain": Arm("one process", "hvdtrain", (), "", (*_KERAS, *_BF16)),
    "fit": Arm("one process", "Keras' own fit", (), "", (*_by_hand("keras_fit"), "--bf16"), sums_gradients=False),
}
OURS = "hvdtrain"
AGAIN = "hvdtrain_again"
"""The same as OURS, measured a second time in each block: what chance does."""


@dataclass(frozen=True)
class Suite:
    """What is compared in one table.

    Args:
        name: of the network.
        framework: "torch" or "tensorflow".
        arms: the commands.
        note: on how it is trained, for people.
        on_gpu: it needs a GPU, and has one worker.
        loss_tolerance: how far apart the arms' losses may be, relatively. They add the same gradients up in another
            order, in bf16 with another rounding; a forgotten exchange or another batch differs by more.
    """

    name: str
    framework: str
    arms: Mapping[str, Arm]
    note: str = ""
    on_gpu: bool = False
    loss_tolerance: float = 1e-2

    @property
    def model(self) -> Model:
        """The network."""
        return MODELS[self.name]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.model.label}{self.note}, {self.framework}"

    @property
    def labels(self) -> dict[str, str]:
        """Of its arms, for people."""
        return {name: f"{arm.runs}, {arm.label}" for name, arm in self.arms.items()}

    @property
    def own(self) -> frozenset[str]:
        """The arms that are hvdtrain."""
        return frozenset(name for name in self.arms if name.startswith(OURS))


SUITES: Mapping[str, Suite] = {
    "resnet18": Suite("resnet18", "torch", _TORCH),
    "linear20": Suite("linear20", "torch", _TORCH),
    "mlp": Suite("mlp", "torch", _TORCH),
    "resnet18-tensorflow": Suite("resnet18", "tensorflow", _TENSORFLOW),
    "linear20-tensorflow": Suite("linear20", "tensorflow", _TENSORFLOW),
    "mlp-tensorflow": Suite("mlp", "tensorflow", _TENSORFLOW),
    "resnet50-gpu": Suite("resnet50", "torch", _TORCH_ON_GPU, ", bf16", on_gpu=True, loss_tolerance=0.1),
    "resnet50-gpu-tensorflow": Suite(
        "resnet50", "tensorflow", _TENSORFLOW_ON_GPU, ", bf16", on_gpu=True, loss_tolerance=0.1
    ),
}


def environment(cache: str) -> dict[str, str]:
    """What all arms run with: the same threads, and quiet frameworks."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), "1")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    path = f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    own = {"PATH": path, "TF_NUM_INTEROP_THREADS": "2", "HVDTRAIN_CACHE_DIR": cache}
    return {**os.environ, **threads, **quiet, **own}
