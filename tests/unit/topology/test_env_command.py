"""`hvdtrain env` as a user runs it: a process of its own with an environment of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from hvdtrain.cli.env import horovod_frameworks, horovod_transports
from hvdtrain.topology.detect import READERS, UNJOINED

MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "0",
}
HAS_HOROVOD = importlib.util.find_spec("horovod") is not None
OURS = {name for reader in READERS for names in reader.table.values() for name in names}
OURS |= {name for unjoined in UNJOINED for name in unjoined.variables}


def run_env(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`hvdtrain env FLAGS` with `variables` and none of a launcher around the tests."""
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    command = [sys.executable, "-m", "hvdtrain", "env", *flags]
    env = {**clean, "COLUMNS": "200", **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)


def test_json_holds_versions_bindings_and_topology() -> None:
    done = run_env("--json", **MPIRUN)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(report) == ["horovod", "topology", "versions"]
    assert report["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report["horovod"] == {"frameworks": horovod_frameworks()}
    topology = report["topology"]
    assert (topology["rank"], topology["size"], topology["local_size"], topology["num_nodes"]) == (0, 4, 2, 2)
    assert topology["launcher"] == "mpirun"


def test_tables_hold_every_fact_and_without_explain_no_sources() -> None:
    done = run_env(**MPIRUN)
    assert done.returncode == 0
    for word in ("python", "hvdtrain", "torch", "tensorflow", "local_size", "num_nodes", "mpirun"):
        assert word in done.stdout
    assert "OMPI_COMM_WORLD_RANK" not in done.stdout


def test_explain_names_what_decided_and_what_was_ignored_and_no_secret() -> None:
    done = run_env(
        "--explain", **MPIRUN, AWS_SECRET_ACCESS_KEY="hidden", SM_HOSTS='["algo-1"]', SLURM_NODELIST="n[1-2]"
    )
    assert done.returncode == 0
    for text in (
        "OMPI_COMM_WORLD_SIZE=4",
        "assumed: every node has the same number of processes",
        "Open MPI comes first: it is inside, or says the same",
        "describes hosts, not ranks",
        "n[1-2]",
    ):
        assert text in done.stdout
    assert "hidden" not in done.stdout


def test_other_ranks_say_a_line_and_json_is_of_rank_0() -> None:
    other = MPIRUN | {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "PMIX_RANK": "3"}
    line = "rank 3 of 4, local rank 1 of 2, node 1 of 2, by mpirun"
    said = {(): f"{line}; rank 0 prints the tables\n", ("--json",): "", ("--all-ranks",): f"{line}\n"}
    said[("--explain",)] = said[()]
    for flags, shown in said.items():
        done = run_env(*flags, **other)
        assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")
    assert json.loads(run_env("--all_ranks", "--json", **other).stdout)["rank"] == 3


def test_partial_evidence_is_bad_usage_and_explain_still_shows_it() -> None:
    done = run_env(RANK="3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "torchrun variables are set (RANK=3), but not WORLD_SIZE." in done.stderr
    done = run_env("--explain", RANK="3")
    assert done.returncode == 2
    assert "stops here" in done.stdout


@pytest.mark.parametrize(
    ("flag", "nearest"), [("--explian", "--explain"), ("--jason", "--json"), ("--all-rank", "--all-ranks")]
)
def test_an_unknown_flag_is_bad_usage_with_the_nearest_one(flag: str, nearest: str) -> None:
    done = run_env(flag)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"has no option {flag!r}" in done.stderr
    assert f"did you mean {nearest!r}?" in done.stderr


def test_a_flag_takes_no_value() -> None:
    done = run_env("--json=yes")
    assert (done.returncode, done.stdout) == (2, "")
    assert "called incorrectly" in done.stderr


def test_no_framework_is_imported() -> None:
    code = (
        "import sys; from hvdtrain.cli.env import run; run([]); "
        "sys.exit(bool({'torch', 'tensorflow', 'keras', 'horovod'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.timeout(600)
@pytest.mark.skipif(not HAS_HOROVOD, reason="Horovod is not installed")
def test_horovod_itself_says_what_it_was_built_with() -> None:
    for framework in horovod_frameworks():
        transports = horovod_transports(framework, deadline=280)
        assert isinstance(transports, dict), transports
        assert sorted(transports) == ["ccl", "cuda", "ddl", "gloo", "mpi", "nccl", "rocm"]
        assert transports["gloo"] or transports["mpi"]


def test_a_binding_that_cannot_be_imported_is_a_sentence() -> None:
    sentence = horovod_transports("abacus")
    assert isinstance(sentence, str)
    assert sentence == "horovod.abacus cannot be imported: not installed"


def test_asking_horovod_has_a_deadline() -> None:
    sentence = "horovod.torch cannot be imported: the import took more than 0.001 s"
    assert horovod_transports("torch", deadline=0.001) == sentence
