"""What `decode` returns and from what it draws is looked at with the first batch, in both frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.commands import Ended, Forker

TASKS = """
import random
import hvdtrain
import numpy as np
{imports}

class Drawing({base}):
    def decode(self, records):
        features = super().decode(records)
        return {{**features, "image": features["image"] + np.float32(np.random.rand() + random.random())}}

class Seeding({base}):
    def decode(self, records):
        features = super().decode(records)
        if records.random is not None:
            for row, seed in enumerate(records.random.integers("seed", 0, 2**31).tolist()):
                np.random.seed(seed)
                features["image"][row] += np.float32(np.random.rand())
        return features

class Turned({base}):
    def decode(self, records):
        features = super().decode(records)
        image = np.flip(np.flip(features["image"], 1).copy(), 1)
        return {{"image": image, "label": features["label"].astype(">i8")}}

class Dated({base}):
    def decode(self, records):
        return {{**super().decode(records), "taken": np.array(["2026-11-26"] * len(records), "M8[D]")}}

class Ragged({base}):
    def decode(self, records):
        return {{**super().decode(records), "words": np.array([[1] * (n + 1) for n in range(len(records))], object)}}

class Empty({base}):
    def decode(self, records):
        return {{}}

class Unlike({base}):
    decode = hvdtrain.Task.decode

    def open_data(self, data):
        items = [{{"image": np.zeros((8, 8 + number % 2), np.float32), "label": 1}} for number in range(64)]
        return hvdtrain.Splits(data.dataset(items))

class Long({base}):
    def decode(self, records):
        return {{name: np.repeat(array, 2, 0) for name, array in super().decode(records).items()}}

class Failing({base}):
    def decode(self, records):
        if 7 in records.ids.tolist():
            raise ArithmeticError("cannot decode")
        return super().decode(records)
"""

Command = Callable[..., Ended]
SHORT = ["--max-steps", "2", "--global-batch-size", "32", "--progress", "lines", "--output-dir", "out"]


def command(forker: Forker, framework: str, folder: Path, cache: Path) -> Command:
    module, base = {"torch": ("torch", "TorchDigits"), "tensorflow": ("keras", "KerasDigits")}[framework]
    imports = f"from hvdtrain.tasks.{module} import {base}"
    (folder / "own.py").write_text(TASKS.format(imports=imports, base=base))
    flags = [] if framework == "torch" else ["--framework", "tensorflow"]

    def run(kind: str, *more: str) -> Ended:
        argv: Sequence[str] = [*SHORT, *flags, "--task", f"own:{kind}", *more]
        return forker.run(argv, folder, {"HVDTRAIN_CACHE_DIR": str(cache)})

    return run


@pytest.fixture
def torch_run(forker: Forker, tmp_path: Path, digits_cache: Path) -> Command:
    return command(forker, "torch", tmp_path, digits_cache)


@pytest.fixture
def keras_run(keras_forker: Forker, tmp_path: Path, digits_cache: Path) -> Command:
    return command(keras_forker, "tensorflow", tmp_path, digits_cache)


DRAWS = "The decode function Drawing.decode draws random numbers from Python's random and numpy.random."


def require_refused(ended: Ended, *facts: str) -> None:
    """At the first batch, before anything is trained."""
    assert ended.code == 2, ended
    assert "Traceback" not in ended.stderr, ended
    assert "\nHINT: " in ended.stderr, ended
    for fact in facts:
        assert ended.stderr.count(fact) == 1, ended


def require_decoded_rightly(run: Command, folder: Path) -> None:
    """Warnings come once, refusals before the first step, and odd arrays train."""
    turned = run("Turned")
    assert turned.code == 0, turned
    assert "draws random" not in turned.stderr + turned.stdout
    drawing = run("Drawing", "--output-dir", "drawing", "--data.threads", "2")
    assert drawing.code == 0, drawing
    assert (drawing.stdout + drawing.stderr).count(DRAWS) == 1
    assert "records.random" in drawing.stdout + drawing.stderr
    for kind, fact in (
        ("Dated", "dates (datetime64[D]) for 'taken'"),
        ("Empty", "Empty.decode returned no array"),
        ("Unlike", "'image' has the shape"),
        ("Long", "The decode function Long.decode returned shape"),
    ):
        require_refused(run(kind, "--output-dir", "refused"), fact)
    refused = run("Drawing", "--deterministic", "--output-dir", "refused")
    require_refused(refused, DRAWS, "--deterministic promises")
    assert not list(folder.glob("refused/checkpoints/step_*"))


def test_torch(torch_run: Command, tmp_path: Path) -> None:
    require_decoded_rightly(torch_run, tmp_path)
    require_refused(torch_run("Ragged", "--output-dir", "refused"), "Python objects (list) for 'words'")


def test_tensorflow(keras_run: Command, tmp_path: Path) -> None:
    require_decoded_rightly(keras_run, tmp_path)


def test_in_processes_seeding_each_record_is_right(torch_run: Command) -> None:
    drawing = torch_run("Drawing", "--data.processes", "1")
    assert drawing.code == 0, drawing
    assert (drawing.stdout + drawing.stderr).count(DRAWS) == 1
    seeding = torch_run("Seeding", "--data.processes", "1", "--output-dir", "seeding", "--deterministic")
    assert seeding.code == 0, seeding
    require_refused(torch_run("Seeding", "--output-dir", "threads", "--deterministic"), "from numpy.random.")


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_record_that_cannot_be_decoded_is_named(processes: str, torch_run: Command) -> None:
    ended = torch_run("Failing", "--max-steps", "100", "--data.processes", processes)
    assert ended.code == 1
    assert "ArithmeticError: cannot decode\nDecoding fails first with record 7 (" in ended.stderr
    assert "train-00000-of-" in ended.stderr
    assert " @ byte " in ended.stderr
