"""`hvdtrain.train(workers=2)` in a script: the result, errors of workers, and an interrupt."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from support.processes import Spawned, environment
from support.runs import latest_checkpoint, result_of

SCRIPT = str(Path(__file__).parent / "workers" / "train_calls_with_workers.py")
DEADLINE_S = 180.0


def script(how: str, folder: Path) -> Spawned:
    return Spawned([sys.executable, SCRIPT, how], environment(), folder)


def test_a_script_trains_its_own_class_by_two_workers_as_one_process_would(tmp_path: Path) -> None:
    with script("results", tmp_path) as call:
        done = call.wait(DEADLINE_S)
        call.require_gone()
    assert done.returncode == 0, done.tail()
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["distance"] < 1e-5
    assert told["again"]
    assert told["rows"][0] == told["rows"][1] > 0
    assert told["run_folder"] == str(tmp_path / "by_2")
    assert result_of(tmp_path / "by_2")["weights"]["equal_on_all_ranks"]
    assert ", 2 workers by hvdtrain launch on 1 node" in done.stdout, done.tail()
    kind, text, notes = told["failing"].values()
    assert kind == "HvdtrainError", told
    assert "failed: LookupError: a Sequential has no use for records of shape (8, 8, 1) (" in text, told
    assert "LookupError: a Sequential has no use" in notes, told
    assert "LookupError" not in done.stdout.rpartition("\n{")[0] + done.stderr, done.tail()
    assert told["open"]["text"].startswith("The class Open cannot be pickled: "), told


def test_an_interrupt_saves_a_checkpoint_and_the_call_returns(tmp_path: Path) -> None:
    with script("slow", tmp_path) as call:
        call.await_that((tmp_path / "out" / "checkpoints" / "latest").exists, "a checkpoint")
        call.process.send_signal(signal.SIGINT)
        done = call.wait(DEADLINE_S)
        call.require_gone()
    assert done.stdout.splitlines()[-1] == "returned stopped", done.tail()
    assert latest_checkpoint(tmp_path / "out").name == f"step_{result_of(tmp_path / 'out')['steps']:08d}"
