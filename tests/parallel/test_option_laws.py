"""What holds for every option, alone and together: n ranks train as one, k micro batches as one batch, and a run that
was interrupted as one that was not. In both frameworks.

All runs of a framework at a number of ranks are made in one start, by `workers/option_runs.py`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import lines_of, result_of

WORKER = Path(__file__).parent / "workers" / "option_runs.py"
DEADLINE_S = 700
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
# 1,438 records: 3 steps an epoch. Two ranks cannot share 501 records evenly, three not the 436 of the last step, and
# neither can three micro batches.
COMMON = ["--global-batch-size", "501", "--epochs", "2", "--task-args.width", "4", "--log-interval", "1"]
BETWEEN = 4  # steps: inside the second epoch
CHECKPOINTS = ["--checkpoint-interval", str(BETWEEN)]
INTERRUPTED = ["--max-steps", str(BETWEEN)]

SINGLE = {
    "plain": "",
    "clip": "--max-grad-norm 0.05",
    "accumulate": "--accumulate-steps 3",
    "ema": "--ema-decay 0.9",
    "sgd": "--optimizer sgd --nesterov --weight-decay 1e-2 --lr 0.05 --lr-schedule linear --lr-min 0.001",
    "adam": "--optimizer adam --weight-decay 1e-2 --beta2 0.99 --lr-schedule step --lr-milestones 1,1.5 --lr-gamma 0.3",
    "adamw": "--optimizer adamw --weight-decay 0.1 --decay-norm-and-bias --lr-schedule polynomial --lr-power 2",
    "lars": "--optimizer lars --lr 0.2 --trust-coefficient 0.02 --weight-decay 1e-3 --warmup-epochs 1 "
    "--lr-schedule polynomial --lr-power 2",
    "lamb": "--optimizer lamb --lr 0.02 --warmup-epochs 1",
}
TOGETHER = {
    "sgd-together": "--optimizer sgd --nesterov --weight-decay 1e-2 --lr 0.05 --accumulate-steps 3 --max-grad-norm 0.5 "
    "--ema-decay 0.9",
    "lamb-together": "--optimizer lamb --lr 0.02 --accumulate-steps 2 --max-grad-norm 0.5 --ema-decay 0.9",
    "lars-together": "--optimizer lars --lr 0.2 --trust-coefficient 0.02 --accumulate-steps 2 --max-grad-norm 0.5 "
    "--ema-decay 0.9 --metrics-detail summary",
}
LOW = {
    "bf16": "--precision bf16 --optimizer sgd --lr 0.05",
    "fp16": "--precision fp16 --optimizer sgd --lr 0.05 --accumulate-steps 2 --max-grad-norm 0.5 --ema-decay 0.9",
}
# Buckets of so few numbers that a rank has pieces of several weights, and of one bias a part. The decay is so large
# that it shows where it is applied to what is exempt from it.
SHARDED = {
    "shard-optimizer": "--shard optimizer --optimizer adamw --weight-decay 20 --accumulate-steps 3 "
    "--max-grad-norm 0.5 --ema-decay 0.9 --bucket-cap-mb 0.001",
    "shard-gradients": "--shard gradients --optimizer sgd --lr 0.05 --accumulate-steps 2 --max-grad-norm 0.5 "
    "--bucket-cap-mb 0.001",
}
# One gradient is of 1 MiB, and is summed where the framework made it.
LARGE = {"large": "--task-args.width 64 --optimizer sgd --lr 0.05 --accumulate-steps 2 --max-grad-norm 0.5"}
CASES = {
    "torch": SINGLE
    | TOGETHER
    | LOW
    | SHARDED
    | LARGE
    | {
        "channels-last": "--channels-last --optimizer adam --weight-decay 1e-2",
        "deterministic": "--deterministic --accumulate-steps 2",
        "horovod": "--gradient-sync horovod --accumulate-steps 2 --optimizer sgd --lr 0.05",
        "shard-channels-last": "--shard gradients --channels-last --optimizer adam --weight-decay 1e-2",
        "shard-fp16": f"{LOW['fp16']} --shard gradients",
    },
    "tensorflow": {"plain": ""}
    | TOGETHER
    | LOW
    | SHARDED
    | LARGE
    | {"adamw": SINGLE["adamw"], "accumulate": SINGLE["accumulate"]}
    | {
        "calls": "--steps-per-call 2 --bucket-cap-mb 0.001 --log-interval 50 --optimizer sgd --lr 0.05 "
        "--max-grad-norm 0.5",
        "horovod": "--gradient-sync horovod --optimizer sgd --lr 0.05",
        "shard-fp16": f"{LOW['fp16']} --shard optimizer",
        # XLA pools in a way that TensorFlow refuses in a process in which --deterministic was ever asked for.
        "compile": "--compile --optimizer sgd --lr 0.05 --accumulate-steps 2 --max-grad-norm 0.5 --ema-decay 0.9",
        "deterministic": "--deterministic --accumulate-steps 2",
        "shard-calls": "--shard optimizer --steps-per-call 2 --log-interval 50 --optimizer sgd --lr 0.05",
    },
}
SIZES = {"torch": (2, 3), "tensorflow": (2,)}
# What three ranks share otherwise than two: the batch, in one piece or several, and all that the options do together.
AT_THREE = {*TOGETHER, *SHARDED, "plain", "accumulate", "fp16", "shard-fp16"}
# Those that have something to resume: an optimizer's state, an average, a scale. At two ranks, they have most of it.
RESUMED_ALONE = {"torch": {*CASES["torch"]}, "tensorflow": {*TOGETHER, *SHARDED, "fp16", "adamw"}}
INTERRUPTED_AT_TWO = {
    "torch": {"lamb-together", "fp16", *SHARDED},
    "tensorflow": {"fp16", "calls", *SHARDED},
}
ALL = [(framework, case) for framework, cases in CASES.items() for case in cases]
# Sums in another order, after 6 steps; Adam's first steps turn any difference of a gradient near 0 into a whole step.
EXACT = 2e-5
# With 64 channels processors differ in their kernels, and these in their sums: 1.4e-4 was seen in a slot of momentum.
WIDE = 1e-3
# bfloat16 keeps 8 bits of what goes through a layer, so that rounding differs with the rows of a batch.
COARSE = 1e-2

State = Mapping[str, NDArray[Any]]
Runs = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """runs(framework, size) → the folder of all its runs.

    NAME-stopped ended on the way, and NAME-resumed goes on from there; alone, from a checkpoint that NAME left there.
    """
    base = tmp_path_factory.mktemp("options")

    @functools.cache
    def start(framework: str, size: int) -> Path:
        folder = base / f"{framework}-{size}"
        folder.mkdir()
        cases = {}
        for name in cases_of(framework, size):
            flags = ["--framework", framework, *COMMON, *CASES[framework][name].split()]
            cases[name] = [*flags, *CHECKPOINTS]
            if size > 1 and is_resumed(framework, size, name):
                cases[f"{name}-stopped"] = [*flags, *INTERRUPTED]
            if is_resumed(framework, size, name):
                cases[f"{name}-resumed"] = [*flags, "--resume", str(on_the_way(folder, name, size))]
            if name in SHARDED and size == 2:
                checkpoint = on_the_way(start(framework, 1), name, 1)
                cases[f"{name}-crossed"] = [*flags, "--resume", str(checkpoint)]
        (folder / "cases.json").write_text(json.dumps(cases))
        command = ["python", str(WORKER), str(folder), str(folder / "cases.json"), framework]
        if size == 1:
            finished = run_command(command, DEADLINE_S, ENVIRONMENT)
        else:
            finished = run_ranks(command, size, "horovodrun", DEADLINE_S, ENVIRONMENT)
        assert finished.returncode == 0, finished.tail()
        return folder

    return start


def cases_of(framework: str, size: int) -> list[str]:
    return [name for name in CASES[framework] if size < 3 or name in AT_THREE]


def is_resumed(framework: str, size: int, case: str) -> bool:
    return case in RESUMED_ALONE[framework] if size == 1 else size == 2 and case in INTERRUPTED_AT_TWO[framework]


def on_the_way(folder: Path, case: str, size: int) -> Path:
    """The checkpoint from which the resumed run goes on."""
    return folder / (case if size == 1 else f"{case}-stopped") / "checkpoints" / f"step_{BETWEEN:08d}"


def state_of(run: Path) -> State:
    """All arrays of the newest checkpoint."""
    return arrays_of(run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip())


def arrays_of(checkpoint: Path) -> State:
    return functools.reduce(lambda all_, file: all_ | load_file(file), sorted(checkpoint.glob("*.safetensors")), {})


def metrics_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = result_of(run)["metrics"]
    return content


def furthest(one: State, other: State) -> float:
    """The largest difference of any two numbers."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name].astype(np.float64) - other[name]).max(initial=0)) for name in one)


def tolerance(case: str) -> float:
    if case in LARGE:
        return WIDE
    return COARSE if case.removeprefix("shard-") in LOW else EXACT


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "case"), ALL)
def test_n_ranks_train_as_one(framework: str, case: str, runs: Runs) -> None:
    """Weights, the optimizer's state, the average of the weights and the loss scale."""
    alone = state_of(runs(framework, 1) / case)
    for size in (size for size in SIZES[framework] if case in cases_of(framework, size)):
        several = state_of(runs(framework, size) / case)
        assert furthest(several, alone) < tolerance(case)
        assert metrics_of(runs(framework, size) / case)["loss"] == pytest.approx(
            metrics_of(runs(framework, 1) / case)["loss"], abs=tolerance(case)
        )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "case"), [pair for pair in ALL if pair[1] in RESUMED_ALONE[pair[0]]])
def test_interrupted_and_resumed_equals_uninterrupted(framework: str, case: str, runs: Runs) -> None:
    """Everything that a checkpoint holds, to the last bit."""
    for size in (size for size in (1, 2) if is_resumed(framework, size, case)):
        folder = runs(framework, size)
        whole, resumed = state_of(folder / case), state_of(folder / f"{case}-resumed")
        stopped = arrays_of(on_the_way(folder, case, size))
        assert furthest(resumed, whole) == 0
        assert furthest(stopped, whole) > 3 * tolerance(case)  # else nothing was compared


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "case"), [pair for pair in ALL if pair[1] in SHARDED])
def test_two_ranks_with_shards_go_on_from_one_rank_without(framework: str, case: str, runs: Runs) -> None:
    whole, crossed = state_of(runs(framework, 1) / case), state_of(runs(framework, 2) / f"{case}-crossed")
    assert furthest(crossed, whole) < EXACT


@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", CASES)
def test_three_micro_batches_train_as_one_batch(framework: str, runs: Runs) -> None:
    for size in (1, *SIZES[framework]):
        folder = runs(framework, size)
        assert furthest(state_of(folder / "accumulate"), state_of(folder / "plain")) < EXACT


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "case"), [pair for pair in ALL if pair[1] not in ("plain", "accumulate")])
def test_every_option_changes_the_training(framework: str, case: str, runs: Runs) -> None:
    """Else the laws above would hold for an option that does nothing."""
    if case in ("channels-last", "deterministic"):
        pytest.skip("changes how numbers are computed, not which")
    if case == "large":
        pytest.skip("is another model")
    weights = {n: a for n, a in state_of(runs(framework, 1) / case).items() if n.startswith(("model/", "ema/"))}
    plain = {n: a for n, a in state_of(runs(framework, 1) / "plain").items() if n.startswith("model/")}
    assert weights.keys() != plain.keys() or furthest(weights, plain) > 1e-4


@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_memory_of_each_rank_is_in_the_result(framework: str, runs: Runs) -> None:
    result = result_of(runs(framework, 2) / "shard-optimizer")
    assert len(result["memory_bytes"]["resident"]) == 2
    assert min(result["memory_bytes"]["resident"]) > 2**27  # a framework alone takes more


@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_ranks_can_be_summarized(framework: str, runs: Runs) -> None:
    """As those of many ranks are; and it changes nothing of the training, by the laws above."""
    run = runs(framework, 2) / "lars-together"
    resident = result_of(run)["memory_bytes"]["resident"]
    assert resident["count"] == 2
    assert {named["rank"] for named in resident["largest"]} == {0, 1}
    assert all(line["seconds"]["ranks"] == 2 for line in lines_of(run, split="train"))


@pytest.mark.timeout(900)
def test_the_validation_measures_the_average_of_the_weights(runs: Runs) -> None:
    folder = runs("torch", 1)
    assert metrics_of(folder / "ema")["loss"] != metrics_of(folder / "plain")["loss"]
    with_average, without = state_of(folder / "ema"), state_of(folder / "plain")
    for name in (n for n in without if n.startswith("model/")):
        np.testing.assert_array_equal(with_average[name], without[name])  # training does not see it
        assert (with_average[name.replace("model/", "ema/", 1)] != without[name]).any()
