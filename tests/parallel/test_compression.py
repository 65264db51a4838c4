"""Compressed gradients and other ops than the average, on several ranks, in both frameworks: what comes home, and what
is learned from it.

Each framework is started once at each number of ranks, with `workers/compression_FRAMEWORK.py`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import reports_of_ranks, result_of

from hvdtrain.algorithms import powersgd_rule

WORKERS = Path(__file__).parent / "workers"
DEADLINE_S = 400
FRAMEWORKS = {"torch": "torch", "tensorflow": "keras"}
SIZES = (2, 3)
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
EVERYWHERE = [(framework, size) for framework in FRAMEWORKS for size in SIZES]
RELATIVE = {"none": 1e-6, "fp16": 2e-3, "bf16": 1e-2}  # 24, 11 and 8 bits
STEPS_BEFORE, STEPS_AFTER, FROZEN_STEPS = 5, 3, range(2, 6)  # of workers/compression_checks.py
EARLY = 8  # steps, after which 1e-7, from sums in another order, has not yet grown to more than
SUMMED_IN_ANOTHER_ORDER = 1e-4

COMMON = ["--global-batch-size", "96", "--epochs", "3", "--optimizer", "sgd", "--lr", "0.3", "--warmup-epochs", "0"]
COMMON += ["--max-grad-norm", "1.0", "--task-args.width", "16", "--checkpoint-interval", "4"]
COMMON += ["--keep-checkpoints", "15", "--progress", "none"]
SHORT = ["--max-steps", "8"]
POWERSGD = ["--compression", "powersgd"]
RESUMED = [*POWERSGD, *SHORT, "--resume", "{of_two}/powersgd/checkpoints/step_00000004"]  # which it left on its way
ONE_RECORD = ["--data.subset", "0.0007", "--max-steps", "2", "--max-grad-norm", "100"]  # all ranks but one have nothing
TRAININGS: dict[tuple[str, int], dict[str, list[str]]] = {
    ("torch", 1): {"none": [], "powersgd": [*POWERSGD, *SHORT], "one-record": ONE_RECORD},
    ("torch", 2): {
        "fp16": ["--compression", "fp16"],
        "bf16": ["--compression", "bf16"],
        "powersgd": POWERSGD,
        "powersgd-resumed": RESUMED,
        "sum": ["--reduce-op", "sum", "--lr", "0.15", "--max-grad-norm", "2.0", *SHORT],
        "adasum": ["--reduce-op", "adasum"],
        "one-record": [*ONE_RECORD, "--reduce-op", "adasum"],
    },
    ("torch", 3): {
        "powersgd": [*POWERSGD, *SHORT],
        "powersgd-resumed": RESUMED,
        "sum": ["--reduce-op", "sum", "--lr", "0.1", "--max-grad-norm", "3.0", *SHORT],
    },
    ("tensorflow", 1): {"none": [], "powersgd": [*POWERSGD, *SHORT], "one-record": ONE_RECORD},
    ("tensorflow", 2): {
        "bf16": ["--compression", "bf16"],
        "powersgd": POWERSGD,
        "powersgd-resumed": RESUMED,
        "one-record": [*ONE_RECORD, "--reduce-op", "adasum"],
    },
    ("tensorflow", 3): {},
}

Arrays = list[NDArray[Any]]


@dataclass(frozen=True)
class Run:
    """What one start left behind: its folder, and for each rank its arrays and the refusal of Adasum."""

    folder: Path
    ranks: list[dict[str, NDArray[Any]]]
    refusals: list[str]

    def of(self, rank: int, name: str) -> Arrays:
        count = sum(key.rpartition("/")[0] == name for key in self.ranks[rank])
        assert count
        return [self.ranks[rank][f"{name}/{place}"] for place in range(count)]

    def mean(self, name: str) -> Arrays:
        """The sum of what the ranks brought, which is their parts of a mean over the global batch."""
        own = [self.of(rank, name) for rank in range(len(self.ranks))]
        return [np.sum([a.astype(np.float64) for a in arrays], axis=0) for arrays in zip(*own, strict=True)]

    def equal_everywhere(self, name: str) -> Arrays:
        """What all ranks have, to the last bit."""
        first = self.of(0, name)
        for rank in range(1, len(self.ranks)):
            for mine, theirs in zip(self.of(rank, name), first, strict=True):
                assert mine.tobytes() == theirs.tobytes()
        return first

    def weights(self, training: str, step: int | None = None) -> dict[str, NDArray[Any]]:
        folder = self._latest(training) if step is None else self._checkpoints(training) / f"step_{step:08d}"
        return load_file(folder / "model.safetensors")

    def extra(self, training: str) -> dict[str, NDArray[Any]]:
        return load_file(self._latest(training) / "extra.safetensors")

    def loss(self, training: str) -> float:
        return float(result_of(self.folder / training)["metrics"]["loss"])

    def _checkpoints(self, training: str) -> Path:
        return self.folder / training / "checkpoints"

    def _latest(self, training: str) -> Path:
        return self._checkpoints(training) / (self._checkpoints(training) / "latest").read_text().strip()


Runs = Callable[[str, int], Run]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    base = tmp_path_factory.mktemp("compression")

    @functools.cache
    def start(framework: str, size: int) -> Run:
        folder = base / f"{framework}-{size}"
        folder.mkdir()
        of_two = start(framework, 2).folder if size == 3 else folder
        cases = {
            name: [*COMMON, *(flag.format(of_two=of_two) for flag in flags)]
            for name, flags in TRAININGS[framework, size].items()
        }
        (folder / "cases.json").write_text(json.dumps(cases))
        command = ["python", str(WORKERS / f"compression_{FRAMEWORKS[framework]}.py"), str(folder)]
        if size == 1:
            finished = run_command(command, DEADLINE_S, env=ENVIRONMENT)
        else:
            finished = run_ranks(command, size, "mpirun", DEADLINE_S, env=ENVIRONMENT)
        assert finished.returncode == 0, finished.tail()
        ranks = [dict(np.load(folder / f"rank_{rank}.npz")) for rank in range(size)]
        return Run(folder, ranks, reports_of_ranks(folder, size))

    return start


def factor_of(op: str, size: int) -> float:
    return float(size) if op == "sum" else 1.0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "size"), EVERYWHERE)
@pytest.mark.parametrize("op", ["average", "sum"])
@pytest.mark.parametrize("compression", RELATIVE)
def test_sums_are_those_of_float32_to_the_wires_precision(
    framework: str, size: int, op: str, compression: str, runs: Runs
) -> None:
    run = runs(framework, size)
    case = f"{compression}-{op}"
    home = run.equal_everywhere(f"{case}/out")
    largest = max(float(np.abs(a).max()) for rank in range(size) for a in run.of(rank, f"{case}/in"))
    for found, mean in zip(home, run.mean(f"{case}/in"), strict=True):
        factor = factor_of(op, size)
        error = np.abs(found - mean * factor)
        assert float(error.max()) <= RELATIVE[compression] * factor * max(largest, float(np.abs(mean).max()))
        assert compression == "none" or found.size == 1 or (error > 0).any()  # it was compressed indeed


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "size"), EVERYWHERE)
def test_range_of_the_wires(framework: str, size: int, runs: Runs) -> None:
    run = runs(framework, size)
    for value in (1e30, 1e-30):
        for found in run.equal_everywhere(f"bf16-{value}/out"):
            np.testing.assert_allclose(found, value * size, rtol=1e-2)
    for found in run.equal_everywhere("fp16-1e+30/out"):
        assert np.isposinf(found).all()
    for found in run.equal_everywhere("fp16-1e-30/out"):
        assert not found.any()
    for op in ("average", "sum"):
        for found in run.equal_everywhere(f"fp16-{op}-headroom/out"):
            np.testing.assert_allclose(found, 2e4 * size * factor_of(op, size), rtol=2e-3)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "size"), EVERYWHERE)
def test_micro_batches_travel_once(framework: str, size: int, runs: Runs) -> None:
    """Were each of them sent, the first one's numbers would be counted twice, or the second one's come too late."""
    run = runs(framework, size)
    for compression, relative in RELATIVE.items():
        home = run.equal_everywhere(f"{compression}-micro/out")
        for found, expected in zip(home, run.mean(f"{compression}-micro/in"), strict=True):
            np.testing.assert_allclose(found, expected, atol=4 * relative)
    home = run.equal_everywhere("powersgd-micro/out")
    for place in (1, 3, 4):  # no matrices
        np.testing.assert_allclose(home[place], run.mean("powersgd-micro/in")[place], atol=1e-6)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["average", "sum"])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_keras_optimizers_get_them_too(size: int, op: str, compression: str, runs: Runs) -> None:
    """`hvd.DistributedOptimizer(compression=…)`: gradients of each rank's own loss."""
    run = runs("tensorflow", size)
    factor = 1.0 if op == "sum" else 1 / size
    home = run.equal_everywhere(f"own-{compression}-{op}/out")
    for found, total in zip(home, run.mean(f"own-{compression}-{op}/in"), strict=True):
        np.testing.assert_allclose(found, total * factor, atol=3 * RELATIVE[compression])


def adasum(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    dot = float((a * b).sum())
    result: NDArray[Any] = a * (1 - dot / (2 * (a * a).sum())) + b * (1 - dot / (2 * (b * b).sum()))
    return result


@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_adasum_of_two(framework: str, runs: Runs) -> None:
    """Each parameter apart, of the ranks' own mean gradients: twice their parts of the mean."""
    run = runs(framework, 2)
    own = [[2.0 * a.astype(np.float64) for a in run.of(rank, "adasum/in")] for rank in range(2)]
    for found, a, b in zip(run.equal_everywhere("adasum/out"), *own, strict=True):
        np.testing.assert_allclose(found, adasum(a, b), rtol=1e-5, atol=1e-6)
    for found in run.equal_everywhere("adasum-equal/out"):
        np.testing.assert_allclose(found, 0.25, rtol=1e-6)
    home = run.equal_everywhere("adasum-orthogonal/out")
    for found, total in zip(home, run.mean("adasum-orthogonal/in"), strict=True):
        if found.size > 1:  # two numbers are never orthogonal
            np.testing.assert_allclose(found, 2 * total, rtol=1e-6)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_adasum_of_ranks_of_which_one_has_all_records_is_the_gradient_of_that_one(framework: str, runs: Runs) -> None:
    one, two = runs(framework, 1).weights("one-record"), runs(framework, 2).weights("one-record")
    assert furthest(two, one) < SUMMED_IN_ANOTHER_ORDER


@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_adasum_of_three_is_refused(framework: str, runs: Runs) -> None:
    for message in runs(framework, 3).refusals:
        assert message.startswith("--reduce-op adasum is given for 3 workers.")
        assert "HINT: start 2, 4, 8" in message


def reference(framework: str, means: list[Arrays], frozen: range = range(0)) -> tuple[list[Arrays], Arrays]:
    """What PowerSGD of rank 2 brings home from mean gradients, and what is owed in the end; as projections.

    Args: `frozen`: the steps in which the first matrix is left out.
    """
    home: list[Arrays] = []
    owed = [np.zeros(m.shape) for m in means[0]]
    factors: dict[int, NDArray[Any]] = {}
    for step, gradients in enumerate(means):
        home.append([])
        for place, gradient in enumerate(gradients):
            if place == 0 and step in frozen:
                home[-1].append(np.zeros(gradient.shape))
                continue
            rows, columns = powersgd_rule.matrix_shape(gradient.shape, 0 if framework == "torch" else -1)
            if gradient.ndim < 2 or (rows + columns) * 2 >= rows * columns:
                home[-1].append(gradient)
                continue
            factor = factors.get(place, powersgd_rule.first_factor(place, columns, 2).astype(np.float64))
            whole = (gradient + owed[place]).reshape(rows, columns)
            left, _, _ = np.linalg.svd(whole @ factor, full_matrices=False)
            factors[place] = whole.T @ left
            home[-1].append((left @ factors[place].T).reshape(gradient.shape))
            owed[place] = whole.reshape(gradient.shape) - home[-1][-1]
    return home, owed


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "size"), [(framework, size) for framework in FRAMEWORKS for size in (1, *SIZES)])
@pytest.mark.parametrize("op", ["average", "sum"])
def test_powersgd_depends_on_means_only_whatever_the_number_of_ranks(
    framework: str, size: int, op: str, runs: Runs
) -> None:
    run = runs(framework, size)
    case = "powersgd" if op == "average" else "powersgd-sum"
    steps = range(STEPS_BEFORE + STEPS_AFTER)
    expected, _ = reference(framework, [run.mean(f"{case}/in/{step}") for step in steps])
    for step in steps:
        for found, mean in zip(run.equal_everywhere(f"{case}/out/{step}"), expected[step], strict=True):
            np.testing.assert_allclose(found, mean * factor_of(op, size), atol=2e-4)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_powersgd_keeps_what_is_owed_to_a_layer_while_it_is_frozen(size: int, runs: Runs) -> None:
    """At any number of ranks, as if there had been no update meanwhile."""
    run = runs("torch", size)
    steps = range(STEPS_BEFORE + STEPS_AFTER)
    means = [run.mean(f"powersgd-frozen/in/{step}") for step in steps]
    expected, _ = reference("torch", means, FROZEN_STEPS)
    for step in steps:
        for found, mean in zip(run.equal_everywhere(f"powersgd-frozen/out/{step}"), expected[step], strict=True):
            np.testing.assert_allclose(found, mean, atol=2e-4)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "size"), [(framework, size) for framework in FRAMEWORKS for size in (1, *SIZES)])
def test_powersgd_goes_on_from_a_checkpoint_to_the_last_bit(framework: str, size: int, runs: Runs) -> None:
    """Its arrays are factors and the mean of what ranks owe: equal on all ranks, and at any number of ranks."""
    run = runs(framework, size)
    for step in range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER):
        whole = run.equal_everywhere(f"powersgd/out/{step}")
        for one, other in zip(whole, run.equal_everywhere(f"powersgd-resumed/out/{step}"), strict=True):
            assert one.tobytes() == other.tobytes()
    _, owed = reference(framework, [run.mean(f"powersgd/in/{step}") for step in range(STEPS_BEFORE)])
    prefix = "powersgd/state/"
    states = [{n: a for n, a in arrays.items() if n.startswith(prefix)} for arrays in run.ranks]
    assert sorted(n.split("/")[4] for n in states[0]) == ["error", "error", "factor", "factor"]
    for state in states:
        assert all(state[name].tobytes() == array.tobytes() for name, array in states[0].items())
    errors = {array.shape: array for name, array in states[0].items() if "/error/" in name}
    for place in (0, 2):
        assert np.abs(owed[place]).max() > 0.1
        np.testing.assert_allclose(errors[owed[place].shape], owed[place], atol=2e-4)


def furthest(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("framework", "training"),
    [("torch", t) for t in ("fp16", "bf16", "powersgd", "adasum")] + [("tensorflow", t) for t in ("bf16", "powersgd")],
)
def test_the_digits_are_learned_as_well(framework: str, training: str, runs: Runs) -> None:
    plain = runs(framework, 1).loss("none")
    assert plain < 0.8  # of 2.3 at the start
    assert runs(framework, 2).loss(training) < plain + 0.2


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("framework", "size"), EVERYWHERE)
def test_an_overflow_on_the_wire_leaves_the_update_out(framework: str, size: int, runs: Runs) -> None:
    """With loss scaling; on all ranks, though only the last one's gradient is too large."""
    run = runs(framework, size)
    for case, changed in (("small", True), ("large", False)):
        (flag, *weights) = run.equal_everywhere(f"scaled-{case}/out")
        assert bool(flag) == changed
        assert all(bool(weight.any()) == changed for weight in weights)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_over_n_ranks_with_an_nth_of_the_rate_trains_as_one_rank(size: int, runs: Runs) -> None:
    one, several = runs("torch", 1).weights("none", EARLY), runs("torch", size).weights("sum", EARLY)
    assert furthest(several, one) < SUMMED_IN_ANOTHER_ORDER


@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_powersgd_trains_alike_at_any_number_of_ranks_and_from_a_checkpoint(framework: str, runs: Runs) -> None:
    one, of_two = runs(framework, 1), runs(framework, 2)
    assert furthest(one.weights("powersgd", EARLY), of_two.weights("powersgd", EARLY)) < SUMMED_IN_ANOTHER_ORDER
    assert furthest(one.weights("powersgd", EARLY), one.weights("none", EARLY)) > 20 * SUMMED_IN_ANOTHER_ORDER
    end = furthest(of_two.weights("powersgd-resumed"), of_two.weights("powersgd", EARLY))
    assert end <= (0 if framework == "torch" else SUMMED_IN_ANOTHER_ORDER)
    assert any(
        np.abs(a).max() > 1e-3 for n, a in of_two.extra("powersgd").items() if n.startswith(powersgd_rule.ERRORS)
    )


@pytest.mark.timeout(900)
def test_powersgd_goes_on_at_three_ranks_where_two_were(runs: Runs) -> None:
    of_two, of_three = runs("torch", 2), runs("torch", 3)
    for training in ("powersgd", "powersgd-resumed"):
        end = furthest(of_three.weights(training, EARLY), of_two.weights("powersgd", EARLY))
        assert end < SUMMED_IN_ANOTHER_ORDER
