"""`hvdtrain` on the digits in one torch process: what it leaves, what it refuses, and what a refusal leaves alone."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.commands import tree
from support.digits_runs import Command, flip
from support.event_files import shown_scalars
from support.runs import lines_of, result_of

from data_sharding.formats.tfrecord import HEADER

MODEL = "checkpoints/step_00000002/model.safetensors"


def test_what_a_run_leaves(finished: Path) -> None:
    files = set(tree(finished))
    assert len([name for name in files if name.startswith("tb/events.out.tfevents.")]) == 1
    assert {name for name in files if not name.startswith("tb/")} == {
        ".begun.json",
        ".lock",
        "audit/catalog.npz",
        "audit/ledger.jsonl",
        "audit/segment_00000000-00000002.bin",
        "config.yaml",
        "env.json",
        "heartbeats/rank_0.json",
        "metrics.jsonl",
        "metrics.csv",
        "result.json",
        "checkpoints/best",
        "checkpoints/latest",
        "checkpoints/step_00000002/manifest.json",
        "checkpoints/step_00000002/model.safetensors",
        "checkpoints/step_00000002/optimizer.safetensors",
    }
    result = result_of(finished)
    assert (result["status"], result["steps"], result["samples_seen"]) == ("stopped", 2, 64)
    assert set(result["metrics"]) == {"loss", "accuracy"}
    assert result["best"] == {"metric": "loss", "value": result["metrics"]["loss"], "step": 2, "epoch": 0}
    assert result["stopped_early"] is None
    lines = lines_of(finished)
    assert [line.get("event") or f"{line['split']} {line['step']}" for line in lines] == [
        *["started", "train 1", "train 2", "validation 2", "checkpoint", "ended"]
    ]


def test_the_norm_of_gradients_is_logged_where_it_is_known_or_asked_for(
    finished: Path, tmp_path: Path, hvdtrain: Command
) -> None:
    clipped, asked = hvdtrain(
        ["--max-grad-norm", "0.5", "--output-dir", "clipped"],
        ["--log-grad-norm", "--loggers", "none", "--output-dir", "asked"],
    )
    assert (clipped.code, asked.code) == (0, 0), (clipped, asked)

    def logged(folder: Path) -> list[float | None]:
        lines = lines_of(folder)
        return [line.get("grad_norm") for line in lines if line.get("split") == "train"]

    norms = logged(tmp_path / "clipped")
    assert len(norms) == 2
    assert all(norm is not None and norm > 0 for norm in norms)
    assert logged(finished) == [None, None]
    assert logged(tmp_path / "asked")[0] == norms[0]  # of the same first weights
    assert not (tmp_path / "asked" / "tb").exists()
    weights = [load_file(run / MODEL) for run in (finished, tmp_path / "asked")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_the_table_and_tensorboard_have_what_metrics_jsonl_has(finished: Path) -> None:
    lines = lines_of(finished)
    measured = [line for line in lines if "split" in line]
    with (finished / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["split"], int(row["step"])) for row in rows] == [(line["split"], line["step"]) for line in measured]
    shown = shown_scalars(finished / "tb")
    for row, line in zip(rows, measured, strict=True):
        assert {name: float(row[name]) for name in ("loss", "accuracy")} == {n: line[n] for n in ("loss", "accuracy")}
        assert (line["step"], pytest.approx(line["loss"])) in shown[f"{line['split']}/loss"]
    assert float(rows[0]["memory"]) == measured[0]["memory"]["max"] == measured[0]["memory"]["ranks"][0] > 2**20


def test_the_first_lines_say_what_is_trained_where_and_by_whom(tmp_path: Path, hvdtrain: Command) -> None:
    (ended,) = hvdtrain(["--optimizer", "sgd", "--nesterov", "--max-grad-norm", "2.0", "--output-dir", "out"])
    assert ended.code == 0, ended
    head, *lines = ended.stdout.splitlines()[:5]
    alone = r"1 worker \(no launcher's variables were found\)"
    assert re.fullmatch(rf"hvdtrain: digits in torch \d[\w.+]* on CPU, {alone}", head)
    assert re.fullmatch(r"model: [\d,]+ parameters; sgd \(.*Nesterov\); max-grad-norm 2.0; seed 42", lines[0])
    assert re.fullmatch(
        r"data: 1,438 records, global batch 32, \d+ steps × 12 epochs, shuffle global; 359 records for validation",
        lines[1],
    )
    assert re.fullmatch(r"lr: \S+ \(scaling none\), warm-up \d+ steps, then \w+.*", lines[2])
    assert re.fullmatch(r"run folder: out; Python \d\S+, hvdtrain \S+", lines[3])
    log = (tmp_path / "out" / "logs" / "rank_0.log").read_text()
    assert all(f"INFO hvdtrain.run: {line}\n" in log for line in (head, *lines))


def test_a_net_with_a_new_head_starts_from_the_rest(finished: Path, tmp_path: Path, hvdtrain: Command) -> None:
    argv = ["--task", "own:Five", "--lr", "1e-30", "--output-dir", "five", "--init-weights", str(finished)]
    (refused,) = hvdtrain(argv)
    refused.require_refusal("Of another shape: logits.weight [10, 128] where the model has [5, 128]")
    flag = "--init-weights-exclude 'logits.weight,logits.bias'"
    assert flag in refused.stderr
    (ended,) = hvdtrain([*argv, *shlex.split(flag)])
    assert ended.code == 0, ended
    assert ", except for logits.weight,logits.bias" in ended.stdout
    old, new = (load_file(run / "checkpoints/step_00000002/model.safetensors") for run in (finished, tmp_path / "five"))
    assert new["model/logits.weight"].shape == (5, 128)
    built = load_file(tmp_path / "built.safetensors")
    assert all(name.startswith("0/") for name in built)  # the first model is the only one, and the trained one
    for name, array in built.items():
        np.testing.assert_array_equal(new[f"model/{name.removeprefix('0/')}"], array)
    for name, array in old.items():
        if "logits" not in name:
            np.testing.assert_array_equal(new[name], array)


def test_its_config_file_repeats_it(finished: Path, tmp_path: Path, hvdtrain: Command) -> None:
    (ended,) = hvdtrain(["--config", str(finished / "config.yaml"), "--output-dir", "again"])
    assert ended.code == 0, ended
    results = [result_of(folder) for folder in (finished, tmp_path / "again")]
    assert results[0]["weights"] == results[1]["weights"]
    assert results[0]["metrics"] == results[1]["metrics"]


def test_a_run_in_parts_is_the_run_in_one(tmp_path: Path, hvdtrain: Command, run_folder: Path) -> None:
    whole, rest = hvdtrain(["--output-dir", "whole", "--max-steps", "5"], ["--output-dir", "out", "--max-steps", "5"])
    assert (whole.code, rest.code) == (0, 0), (whole, rest)
    assert "training from step 2 to " in rest.stderr
    results = [result_of(folder) for folder in (tmp_path / "whole", run_folder)]
    assert results[0]["weights"] == results[1]["weights"]
    assert results[0]["samples_seen"] == results[1]["samples_seen"] == 160


def test_a_dry_run_tries_one_batch_and_writes_nothing(tmp_path: Path, hvdtrain: Command) -> None:
    before = tree(tmp_path)
    (ended,) = hvdtrain(["--dry-run", "--ema-decay", "0.9", "--best-metric", "accuracy"])
    assert ended.code == 0, ended
    assert "global batch 32" in ended.stdout
    assert re.search(r"training batch of 32 records: forward, backward and update in \S+ s, .*loss \d", ended.stdout)
    assert re.search(r"validation batch of 32 records: forward in \S+ s, .*loss \d", ended.stdout)
    assert "dry run: nothing was written" in ended.stdout
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["CannotRun", "Infinite", "CannotGoBack"])
def test_a_dry_run_finds_a_model_that_cannot_run(kind: str, tmp_path: Path, hvdtrain: Command) -> None:
    before = tree(tmp_path)
    (ended,) = hvdtrain(["--dry-run", "--task", f"own:{kind}"])
    assert ended.code == (2 if kind == "CannotGoBack" else 1), ended
    message = {
        "CannotRun": "mat1 and mat2",
        "Infinite": "The training loss is inf",
        "CannotGoBack": "depends on no weight that is trained",
    }
    assert message[kind] in ended.stderr
    assert tree(tmp_path) == before


EARLY = ["--global-batch-size", "256", "--max-steps", "1000", "--epochs", "9", "--best-metric", "accuracy"]
EARLY += ["--early-stopping-patience", "1", "--early-stopping-min-delta", "1"]  # no accuracy improves by so much


def test_a_run_that_stops_early(hvdtrain: Command, tmp_path: Path) -> None:
    """It is finished, and the same command again trains no step; in another folder it takes its best along."""
    (first,) = hvdtrain([*EARLY, "--output-dir", "early"])
    os.utime(tmp_path / "early" / "result.json", (0, 0))
    of_two = '{"topology": {"size": 2}}'
    (tmp_path / "early" / "env.json").write_text(of_two)  # as if two workers had trained
    config = (tmp_path / "early" / "config.yaml").read_text()
    (again,) = hvdtrain([*EARLY, "--progress", "none", "--output-dir", "early"])
    assert (first.code, again.code) == (0, 0), (first, again)
    reason = "after epoch 2: no better accuracy in 1 validation (by more than 1)"
    assert f"stopped early {reason}\n" in first.stderr
    assert reason in first.stdout
    assert "nothing was left to train; result.json stays as it was" in again.stdout
    assert (tmp_path / "early" / "result.json").stat().st_mtime > 0, "it does not show that the second one has ended"
    assert (tmp_path / "early" / "env.json").read_text() == of_two, "it speaks of a start that has trained nothing"
    assert (tmp_path / "early" / "config.yaml").read_text() == config
    result = result_of(tmp_path / "early")
    steps = result["steps"] // 2
    assert (result["status"], result["epochs"], steps) == ("finished", 2, 6)
    assert result["stopped_early"] == {
        **{"epoch": 1, "step": 2 * steps, "metric": "accuracy", "patience": 1, "min_delta": 1.0}
    }
    assert result["best"]["metric"] == "accuracy"
    best = f"step_{result['best']['step']:08d}\n"
    assert (tmp_path / "early" / "checkpoints" / "best").read_text() == best
    lines = lines_of(tmp_path / "early")
    validated = [line for line in lines if line.get("split") == "validation"][:2]
    assert max(line["accuracy"] for line in validated) == result["best"]["value"]
    assert [line["step"] for line in validated if line.get("best")][-1] == result["best"]["step"]
    assert "stopped early" in [line.get("event") for line in lines]
    longer = [*EARLY, "--early-stopping-patience", "2", "--resume", "early"]
    (elsewhere,) = hvdtrain([*longer, "--output-dir", "elsewhere", "--max-steps", str(2 * steps + 1)])
    assert elsewhere.code == 0, elsewhere
    assert (tmp_path / "elsewhere" / "checkpoints" / best.strip() / "manifest.json").exists()


def test_a_metric_that_the_task_does_not_measure(hvdtrain: Command, tmp_path: Path, run_folder: Path) -> None:
    """It is known from one batch, before a step is trained and before an older run in the folder is touched."""
    before = tree(run_folder)
    new, old = hvdtrain(*(["--best-metric", "acuracy", "--output-dir", where] for where in ("new", "out")))
    for ended in (new, old):
        ended.require_refusal("The task does not measure 'acuracy'.", "did you mean 'accuracy'? Valid: accuracy, loss.")
    assert tree(run_folder) == before
    assert not (tmp_path / "new" / "metrics.jsonl").exists()


def test_folders_that_cannot_be_written(hvdtrain: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    before = tree(tmp_path)
    for ended in hvdtrain(*(["--output-dir", where] for where in ("file", "file/below", "/proc/below"))):
        ended.require_refusal("The run folder ", " cannot be written: ")
    assert tree(tmp_path) == before


def test_data_that_is_not_there(hvdtrain: Command, tmp_path: Path, digits: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in digits.glob("validation-*"):
        path.unlink()
    answers = hvdtrain(*(["--data.dir", where] for where in ("nowhere", "empty", "digits")))
    answers[0].require_refusal("nowhere. It was given as --data.dir.")
    answers[1].require_refusal("empty/train-*.tfrecord")
    answers[2].require_refusal("digits/validation-*.tfrecord")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("part", ["length", "data"])
def test_a_damaged_record_is_found_before_training(hvdtrain: Command, tmp_path: Path, digits: Path, part: str) -> None:
    """The second record of a file: at its length, and in its payload."""
    path = sorted(digits.glob("train-*"))[2]
    (first_length,) = HEADER.unpack_from(path.read_bytes())[:1]
    second = HEADER.size + first_length + 4
    flip(path, second if part == "length" else second + HEADER.size + 5)
    (ended,) = hvdtrain(["--data.dir", "digits"])
    ended.require_refusal(f"{path}, at byte offset {second}, ")
    assert not (tmp_path / "runs").exists()


def test_task_arguments(hvdtrain: Command) -> None:
    unknown, smaller = hvdtrain(["--task-args.wdith", "8"], ["--task-args.width", "8", "--max-steps", "1"])
    unknown.require_refusal("takes no argument 'wdith'", "did you mean 'width'?")
    assert smaller.code == 0, smaller


def test_a_task_that_fails_shows_its_traceback(hvdtrain: Command) -> None:
    (ended,) = hvdtrain(["--task", "own:Failing"])
    assert ended.code == 1
    assert "RuntimeError: cannot decode" in ended.stderr
    assert "while loading step 0 of epoch 0" in ended.stderr
    assert "HINT" not in ended.stderr


@pytest.mark.parametrize("fails", [False, True])
def test_a_tasks_callbacks_receive_every_event_and_may_end_the_run(
    tmp_path: Path, hvdtrain: Command, fails: bool
) -> None:
    (ended,) = hvdtrain(
        ["--task", "own:Told", "--task-args.fails", str(fails), "--log-interval", "1", "--output-dir", "told-run"]
    )
    assert (tmp_path / "told").exists(), ended
    told = (tmp_path / "told").read_text().split()
    lines = [json.loads(line) for line in (tmp_path / "told-run/metrics.jsonl").read_text().splitlines()]
    assert (told[0], told[-1]) == ("RunStarted", "RunFailed" if fails else "RunEnded")
    assert ("CheckpointDurable" in told) == (not fails)
    if fails:
        assert ended.code == 1, ended
        assert "a callback's own error" in ended.stderr
        assert lines[-1]["event"] == "failed"
        assert lines[-1]["error"] == "ValueError: a callback's own error"
    else:
        assert ended.code == 0, ended
        assert lines[-1]["event"] == "ended"


def test_a_callback_that_fails_at_the_end_costs_no_result(tmp_path: Path, hvdtrain: Command) -> None:
    (ended,) = hvdtrain(["--task", "own:FailsAtTheEnd", "--output-dir", "run"])
    assert ended.code == 1, ended
    assert "a callback's error at the end" in ended.stderr
    assert result_of(tmp_path / "run")["steps"] == 2
    assert (tmp_path / "told").read_text().split()[-2:] == ["RunEnded", "RunFailed"]


def test_sinks_and_callbacks_are_told_of_a_sink_that_cannot_be_opened(tmp_path: Path, hvdtrain: Command) -> None:
    (ended,) = hvdtrain(["--task", "own:CannotOpenASink", "--output-dir", "run"])
    assert ended.code == 1, ended
    assert "a sink's own error" in ended.stderr
    assert (tmp_path / "told").read_text().split() == ["RunFailed"]
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["error"] == "ValueError: a sink's own error"


def test_callbacks_that_are_no_functions_are_refused_before_training(tmp_path: Path, hvdtrain: Command) -> None:
    (ended,) = hvdtrain(["--task", "own:NoList", "--output-dir", "run"])
    assert ended.code == 2, ended
    assert "The task's callbacks() returned None." in ended.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
