"""From a run to a file or folder for other programs, which is written completely or not at all."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from safetensors.numpy import save

from data_sharding.atomic import final_path, sync_folder
from hvdtrain.checkpoints.format import Checkpoint
from hvdtrain.errors import UsageError
from hvdtrain.history.run_facts import run_of
from hvdtrain.models.exchange import to_torch
from hvdtrain.tasks.task_registry import require_installed
from hvdtrain.weights.named_weights import Arrays, Framework, NamedWeights, without_wrappers
from hvdtrain.weights.rebuild import data_access, example_features, rebuilt_task
from hvdtrain.weights.trained_model import model_with
from hvdtrain.weights.weight_files import kind_of, read_run, read_weights, weights_of_run


@dataclass(frozen=True)
class Format:
    """A kind of file."""

    suffix: str  # of the file's name
    framework: Framework | None  # that writes it; None: the run's own
    whole: bool  # whether it holds the model itself, and not its weights alone
    about: str  # one line of help


FORMATS: Final[Mapping[str, Format]] = {
    "safetensors": Format(".safetensors", None, False, "weights, by the names of the run's framework"),
    "state-dict": Format(".pt", "torch", False, "weights for torch: model.load_state_dict(torch.load(PATH))"),
    "torchscript": Format(".torchscript.pt", "torch", True, "a model for torch.jit.load, also in C++"),
    "torch-export": Format(".pt2", "torch", True, "a model for torch.export.load"),
    "onnx": Format(".onnx", None, True, "a model for ONNX Runtime and others"),
    "weights-h5": Format(".weights.h5", "tensorflow", False, "weights for Keras: model.load_weights(PATH)"),
    "keras": Format(".keras", "tensorflow", True, "a model for keras.saving.load_model"),
    "savedmodel": Format("_savedmodel", "tensorflow", True, "a model for tf.saved_model.load and TensorFlow Serving"),
}

_OF_ARRAYS: Final = ("safetensors", "state-dict")  # no model need be built for them
_KERAS_READS_BY_SUFFIX: Final = ("weights-h5", "keras")


@dataclass(frozen=True)
class Exported:
    """What was written: `takes` says what the model takes, where the file holds one."""

    path: Path
    arrays: int
    origin: str
    takes: str


def export(
    source: Path,
    format_name: str,
    output: Path | None = None,
    *,
    prefix: str = "",
    averaged: bool = False,
    data_dir: str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the weights or the model of a run.

    Args:
        source: a run or checkpoint folder; or a file of weights, for formats that hold weights alone.
        format_name: one of `FORMATS`.
        output: the file; None: in the run's `exports/`, or beside `source` where that is none.
        prefix: put before each name of a state-dict, such as "module." for scripts that wrap first and load then.
        averaged: take the exponential moving averages of the weights.
        data_dir: where the run's data are now, for tasks whose model cannot be built or called without.
        overwrite: whether `output` may be there already.

    Raises `UsageError`: `source` holds nothing to export, the format cannot hold it, or `output` is taken.
    """
    chosen = FORMATS[format_name]
    kind = kind_of(source)
    run = read_run(source, "RUN") if kind == "run" else None
    path = output if output is not None else _default_path(source, run, chosen)
    _require_right_name(path, format_name, prefix)
    require_free(path, overwrite)
    if run is None:
        _require_weights_only(source, format_name, averaged)
        weights = read_weights(source, kind)
    else:
        weights = weights_of_run(run, source, averaged)
    takes = ""
    with replacing(path) as temporary:
        if run is None or format_name in _OF_ARRAYS:
            temporary.write_bytes(_weights_bytes(weights, format_name, prefix))
        else:
            takes = _write_built(run, weights, format_name, temporary, data_dir)
    return Exported(path, len(weights.arrays), weights.origin, takes)


def _require_right_name(path: Path, format_name: str, prefix: str) -> None:
    if prefix and format_name != "state-dict":
        raise UsageError(f"--prefix {prefix} is given with --format {format_name}.", "It would do nothing.", "drop it.")
    suffix = FORMATS[format_name].suffix
    if format_name in _KERAS_READS_BY_SUFFIX and not path.name.endswith(suffix):
        raise UsageError(f"--output is {path}.", f"Keras reads such a file by its name's end, {suffix}.", "add it.")


def _require_weights_only(source: Path, format_name: str, averaged: bool) -> None:
    if averaged or format_name not in _OF_ARRAYS:
        raise UsageError(
            f"{source} holds weights, and not what they belong to.",
            f"{'--ema' if averaged else f'--format {format_name}'} needs a run.",
            "give the folder of a run, or --format safetensors or state-dict.",
        )


def _weights_bytes(weights: NamedWeights, format_name: str, prefix: str) -> bytes:
    arrays: Arrays = {name: np.asarray(array, order="C") for name, array in weights.arrays.items()}
    if weights.framework == "torch":
        arrays = without_wrappers(arrays)
    if format_name == "safetensors":
        return save(arrays, {"format": "pt" if weights.framework == "torch" else "keras"})
    require_installed("torch")
    from hvdtrain.weights.torch_files import state_dict_bytes

    return state_dict_bytes(arrays if weights.framework == "torch" else to_torch(arrays), prefix)


def _write_built(run: Checkpoint, weights: NamedWeights, format_name: str, path: Path, data_dir: str | None) -> str:
    framework = FORMATS[format_name].framework or weights.framework
    task = rebuilt_task(run.about, framework)
    if framework == "torch":
        from hvdtrain.weights import torch_files

        features = example_features(task, run.about, data_dir)
        return torch_files.write_model(model_with(task, weights), task, features, format_name, path)
    from hvdtrain.weights import keras_models

    keras_models.use_no_gpu()
    if data_dir is not None:
        task.open_data(data_access(run.about, data_dir))
    return keras_models.write_model(model_with(task, weights), format_name, path)


def _default_path(source: Path, run: Checkpoint | None, chosen: Format) -> Path:
    if run is None:
        return source.with_name(source.name.partition(".")[0] + chosen.suffix)
    name = f"step_{run.position.step:08d}{chosen.suffix}"
    folder = source.parent if source.is_file() else source
    if (folder / "manifest.json").is_file():
        folder = folder.parent
    return (folder.parent if folder.name == "checkpoints" else folder) / "exports" / name


def require_free(path: Path, overwrite: bool) -> None:
    """Raise `UsageError` where `path` is taken, unless it may be overwritten: a file, or a folder with a SavedModel."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise UsageError(
            f"{path} is there already.", "It would be lost.", "choose another --output, or add --overwrite."
        )
    if (run := run_of(path) or run_of(Path(os.path.realpath(path)))) is not None:  # a link's file is replaced
        raise UsageError(
            f"{path} belongs to the run in {run}.", "The run would be damaged.", "choose another --output."
        )
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        raise UsageError(
            f"{path} is a folder, and no SavedModel.", "All that is in it would be lost.", "choose another --output."
        )
    if not path.is_dir():
        try:
            final_path(path)
        except OSError as error:
            raise _unwritable(path, error) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a place to write a file or folder of the same name, which then replaces `path` whole or not at all.

    A symlink stays one: what it leads to is replaced.

    Raises `UsageError`: it cannot be written.
    """
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            temporary = Path(folder, path.name)
            yield temporary
            _sync(temporary)
            if temporary.is_dir() and path.is_dir():
                path.rename(Path(folder, f"replaced.{path.name}"))
            temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def _sync(path: Path) -> None:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    for file in files:
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written: {error.strerror or error}.", "Nothing was exported.", "choose another --output."
    )
