"""hvdtrain.keras under real launchers: what several ranks train is what one process trains.

Each launch does all checks at once (workers/keras_fit_all.py) and the tests
compare what its ranks wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import reports_of_ranks

pytestmark = pytest.mark.timeout(900)  # the job that many tests share counts for the first of them
ROOT = Path(__file__).parents[2]
WORKERS = Path(__file__).parent / "workers"
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # A collective that not all ranks join ends the run with Horovod's own words before the deadline does.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "40",
}
CASES = [
    *("sgd_momentum", "adam_embedding_clipnorm", "sgd_embedding", "global_clipnorm", "adamw_ema", "accumulation"),
    *("loss_scale", "sum", "fp16", "unbuilt", "subclassed", "jit_asked_for", "eager", "two_steps_an_execution"),
]
# Of sums in another order; fp16 keeps 11 bits of a gradient.
TOLERANCE = {"fp16": 2e-3}


@dataclass(frozen=True)
class Run:
    """What the ranks of one launch wrote."""

    results: list[dict[str, Any]]
    weights: list[dict[str, Any]]

    def of(self, case: str, rank: int) -> list[Any]:
        """A case's final weights on one rank."""
        return [array for name, array in self.weights[rank].items() if name.split("/")[0] == case]


def read_run(folder: Path, size: int) -> Run:
    results = reports_of_ranks(folder, size)
    assert [(r["rank"], r["size"]) for r in results] == [(rank, size) for rank in range(size)]
    return Run(results, [dict(np.load(folder / f"rank_{rank}.npz")) for rank in range(size)])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("alone")
    finished = run_command(["python", str(WORKERS / "keras_fit_all.py"), str(folder)], 300, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    return read_run(folder, 1)


# What ranks do to each other, again at a number of them that is no power of 2, and by Gloo.
AT_THREE = ["adam_embedding_clipnorm", "sum", "fp16"]
CHECKED_AT_THREE = ["gradients", "metrics", "control"]
TWO = pytest.param(("mpirun", 2), id="mpirun-2")
THREE = pytest.param(("horovodrun-gloo", 3), id="gloo-3")
at_two = pytest.mark.parametrize("ranks", [TWO], indirect=True)
at_three = pytest.mark.parametrize("ranks", [THREE], indirect=True)
at_two_and_three = pytest.mark.parametrize("ranks", [TWO, THREE], indirect=True)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Run]:
    """One start for each launcher and size, in whichever order tests ask for them."""

    @functools.cache
    def start(launcher: str, size: int) -> Run:
        folder = tmp_path_factory.mktemp(launcher)
        names = [*AT_THREE, *CHECKED_AT_THREE] if size == 3 else []
        command = ["python", str(WORKERS / "keras_fit_all.py"), str(folder), *names]
        finished = run_ranks(command, size, launcher, deadline_s=600, env=ENVIRONMENT)
        assert finished.returncode == 0, finished.tail()
        return read_run(folder, size)

    return start


@pytest.fixture
def ranks(request: pytest.FixtureRequest, started: Callable[[str, int], Run]) -> Run:
    return started(*request.param)


@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        *(pytest.param(("mpirun", 2), case, id=f"mpirun-2-{case}") for case in CASES),
        *(pytest.param(("horovodrun-gloo", 3), case, id=f"gloo-3-{case}") for case in AT_THREE),
    ],
    indirect=["ranks"],
)
def test_weights_are_bit_equal_on_all_ranks_and_those_of_one_process(ranks: Run, alone: Run, case: str) -> None:
    """Every rank began with other weights, so this also shows that the broadcast came before the first gradient.

    And it shows that names of layers, which differ between the ranks, play no part.
    """
    first, expected = ranks.of(case, 0), alone.of(case, 0)
    assert len(first) == len(expected) > 0
    for rank in range(1, len(ranks.results)):
        assert all(np.array_equal(a, b) for a, b in zip(first, ranks.of(case, rank), strict=True))
    for mine, theirs in zip(first, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=TOLERANCE.get(case, 2e-6))


@pytest.mark.parametrize("case", CASES)
def test_training_moves_weights_further_than_the_tolerance(alone: Run, case: str) -> None:
    """Else the comparison above would hold for ranks that train nothing."""
    embeddings = {"adam_embedding_clipnorm": "sgd_embedding", "sgd_embedding": "adam_embedding_clipnorm"}
    other = embeddings.get(case, "sgd_momentum" if case == "global_clipnorm" else "global_clipnorm")
    differences = [np.abs(a - b).max() for a, b in zip(alone.of(case, 0), alone.of(other, 0), strict=True)]
    assert max(differences) > 10 * TOLERANCE.get(case, 2e-6)


@at_two_and_three
@pytest.mark.parametrize("how", ["eager", "graph"])
@pytest.mark.parametrize("op", ["average", "sum"])
def test_gradients_of_all_kinds_are_reduced_in_small_buckets(ranks: Run, how: str, op: str) -> None:
    for result in ranks.results:
        reduced = result["gradients"][f"{how} {op}"]
        assert reduced["dtypes"] == ["float32", "float64", "none", "bfloat16", "float32", "float32", "float16"]
        assert reduced["buckets"] == 4
        for found, expected in zip(reduced["values"], reduced["expected"], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-2 if len(found) == 3 else 1e-6)


@at_two_and_three
def test_plain_keras_drifts_apart_on_the_same_data(ranks: Run) -> None:
    others = ", ".join(str(rank) for rank in range(1, len(ranks.results)))
    for result in ranks.results:
        assert result["control"].startswith(f"DivergenceError: Variables of rank {others} differ from rank 0's")


@at_three
def test_moving_statistics_are_equal_after_fit(ranks: Run) -> None:
    assert ranks.of("normalized", 0)
    for rank in range(1, len(ranks.results)):
        pairs = zip(ranks.of("normalized", 0), ranks.of("normalized", rank), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


@at_two_and_three
def test_metrics_of_uneven_shards_are_those_of_all_samples(ranks: Run, alone: Run) -> None:
    expected = alone.results[0]["metrics"]
    assert sum(result["metrics"]["samples"] for result in ranks.results) == expected["samples"]
    for result in ranks.results:
        found = result["metrics"]
        assert found["history"].keys() == expected["history"].keys()
        for name, values in expected["history"].items():
            np.testing.assert_allclose(found["history"][name], values, rtol=1e-6)
        assert found == {**ranks.results[0]["metrics"], "local": found["local"], "samples": found["samples"]}
        np.testing.assert_allclose(
            [found["returned"][name] for name in sorted(found["returned"])],
            [expected["returned"][name] for name in sorted(expected["returned"])],
            rtol=1e-6,
        )
        # A callback that stands before the averaging one reads the reduced logs too.
        assert found["seen"][-1] == {name: values[-1] for name, values in found["history"].items()}


@at_two_and_three
def test_a_mean_of_the_ranks_means_would_be_wrong_here(ranks: Run, alone: Run) -> None:
    expected = alone.results[0]["metrics"]["returned"]
    for name in ("loss", "accuracy", "auc", "precision"):
        mean = np.mean([result["metrics"]["local"][name] for result in ranks.results])
        assert abs(mean - expected[name]) > 1e-3


@pytest.mark.parametrize(
    ("ranks", "check"),
    [
        pytest.param(("mpirun", 2), "two_outputs", id="mpirun-2"),
        pytest.param(("mpirun", 2), "two_outputs_traced_before", id="mpirun-2-traced-before"),
    ],
    indirect=["ranks"],
)
def test_the_losses_of_single_outputs_are_means_over_all_samples(ranks: Run, alone: Run, check: str) -> None:
    for run in (alone, ranks) if check == "two_outputs" else (ranks,):
        results = [result[check] for result in run.results]
        squares, distances, samples = np.sum([result["sums"] for result in results], axis=0)
        expected = {"a_loss": squares / samples, "a_mse": squares / samples, "b_loss": distances / samples}
        expected["loss"] = expected["a_loss"] + expected["b_loss"]
        for result in results:
            for name, value in expected.items():
                found = [result["logged"][name], result["logged"][f"val_{name}"], result["returned"][name]]
                np.testing.assert_allclose(found, value, rtol=1e-5)
        # Without the callback, evaluate returns each rank's own.
        assert len({result["own"]["loss"] for result in results}) == len(results)


def test_states_of_keras_metrics_are_sums(alone: Run) -> None:
    law = alone.results[0]["metric_state_law"]
    assert {"Mean", "AUC", "Precision", "R2Score", "F1Score", "RootMeanSquaredError", "PearsonCorrelation"} <= set(law)
    assert {name: error for name, error in law.items() if not error < 1e-6} == {}


@at_two
def test_early_stopping_stops_all_ranks_at_one_epoch(ranks: Run) -> None:
    first = ranks.results[0]["early_stopping"]
    assert 2 < first["epochs"] < 25
    assert all(result["early_stopping"] == first for result in ranks.results)


@at_two
def test_warmup_is_a_function_of_the_step(ranks: Run) -> None:
    size = len(ranks.results)
    steps = np.arange(20)
    expected = 0.6 / size + (0.6 - 0.6 / size) * np.minimum(1, steps / 10)
    for result in ranks.results:
        np.testing.assert_allclose(result["warmup"]["whole"], expected, rtol=1e-6)
        np.testing.assert_allclose(result["warmup"]["resumed"], expected[5:], rtol=1e-6)
        np.testing.assert_allclose(result["warmup"]["after"], [0.123] * 5, rtol=1e-6)


@at_two
def test_a_saved_model_loads_as_plain_keras_and_continues_distributed(ranks: Run) -> None:
    for result in ranks.results:
        saved = result["save_and_load"]
        assert saved["plain"] == ["keras.src.optimizers.adam", "Adam"]
        assert saved["iterations"] == 10
        assert saved["difference"] == 0.0
        assert "compiled with a plain Adam" in saved["refused"]


@at_two
def test_ranks_are_equal_where_one_of_them_has_loaded_its_model(ranks: Run) -> None:
    for result in ranks.results:
        resumed = result["loaded_on_one_rank"]
        np.testing.assert_allclose(resumed["rates"], [0.004] * 5, rtol=1e-6)
        assert resumed["in sync"] == resumed["computed rate"] == "NO ERROR"


@at_two
def test_ranks_normalize_alike_where_one_of_them_was_adapted(ranks: Run) -> None:
    first = ranks.results[0]["adapted_on_one_rank"]
    for result in ranks.results:
        adapted = result["adapted_on_one_rank"]
        assert all("mean" in message for message in adapted["apart"])
        assert adapted["in sync"] == ["NO ERROR"] * 2
        assert adapted["outputs"] == first["outputs"]
        assert "rank 0 has no batch 3 in epoch 1" in adapted["uneven"]
        np.testing.assert_allclose(adapted["outputs"][::2], adapted["outputs"][1::2], rtol=1e-5)


REFUSALS = {
    "twice": "distributed already",
    "op": "did you mean 'average'?",
    "place_of_op": "in the place of a name",
    "place_of_compression": "was given 'fp16' in the place of a name",
    "compression": "compression='fp8'",
    "string": "was given 'sgd'",
    "root": "no rank 99",
    "loss_scale_outside": "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))",
    "loss_scale_around": "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))",
    "mixed_policy": "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))",
    "plain_optimizer": "compiled with a plain SGD",
    "jit_without_callback": "jit_compile=False",
    "uneven_steps": "steps per epoch: rank 0: 3, rank 1: 4",
    "other_rates": "The ranks' learning rates differ: rank 0: 0.1; rank 1: 0.01.",
    "schedule": "follows a ExponentialDecay",
    "scaled_schedule": "follows a ExponentialDecay",
    "metric_class": "MetricAverageCallback(summable=[Largest])",
    "logs_without_metric": "logs batch_only",
    "never_applies": "does not call its optimizer's apply",
}


@at_two
@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals_name_the_cause_on_every_rank(ranks: Run, refusal: str) -> None:
    for result in ranks.results:
        message = result["refusals"][refusal]
        assert message.startswith("UsageError: ")
        assert REFUSALS[refusal] in message
        assert "\nHINT: " in message


@at_two
def test_a_declared_metric_class_is_accepted(ranks: Run) -> None:
    assert ranks.results[0]["refusals"]["declared"] == "largest,loss"


@pytest.mark.parametrize(
    ("case", "env", "expected"),
    [
        ("use_before_init", {}, "REFUSED hvd.DistributedOptimizer was used before hvd.init()."),
        ("callback_before_init", {}, "was used before hvd.init()."),
        ("init", {"OMPI_COMM_WORLD_SIZE": "2"}, "(OMPI_COMM_WORLD_SIZE=2), but not OMPI_COMM_WORLD_RANK"),
        ("init", {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "but Horovod sees one"),
        ("init", {}, "ACCEPTED"),
    ],
)
def test_start(case: str, env: dict[str, str], expected: str) -> None:
    finished = run_command(["python", str(WORKERS / "keras_fit_init.py"), case], 300, {**ENVIRONMENT, **env})
    assert finished.returncode == 0, finished.tail()
    assert expected in finished.stdout


def test_another_backend_is_refused(tmp_path: Path) -> None:
    """By a name that gets an interpreter which has imported torch, and not Keras."""
    script = tmp_path / "other_backend.py"
    script.write_text("import hvdtrain.keras as hvd\nhvd.init()\n")
    finished = run_command(["python", str(script)], 300, {**ENVIRONMENT, "KERAS_BACKEND": "torch"})
    assert finished.returncode == 1, finished.tail()
    assert "UsageError: Keras runs on the torch backend." in finished.stderr, finished.tail()


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_a_rank_that_dies_ends_the_job(launcher: str) -> None:
    finished = run_ranks(["python", str(WORKERS / "keras_fit_death.py")], 2, launcher, deadline_s=250, env=ENVIRONMENT)
    assert finished.returncode != 0
    assert "rank 1 gives up" in finished.stdout + finished.stderr
    assert "TRAINED TO THE END" not in finished.stdout


@pytest.mark.parametrize(("launcher", "size"), [("mpirun", 2), ("horovodrun-gloo", 3)])
def test_the_example_reaches_its_accuracy(launcher: str, size: int) -> None:
    finished = run_ranks(["python", str(ROOT / "examples/keras_fit.py")], size, launcher, 250, env=ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    line = next(line for line in finished.stdout.splitlines() if "test accuracy" in line)
    assert f"{size} worker(s)" in line
    assert float(line.split()[-1]) > 0.95
