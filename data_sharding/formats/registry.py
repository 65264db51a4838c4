"""All formats by name, and which one a path holds."""

import contextlib
import dataclasses
import difflib
import importlib
import os
from collections.abc import Mapping
from typing import Any, Final

from data_sharding.errors import PlanError
from data_sharding.formats.record_format import RecordFormat
from data_sharding.storage.file_entry import matches
from data_sharding.storage.input_files import Paths, listing

_FORMATS: Final = {
    "tfrecord": "data_sharding.formats.tfrecord:TFRecordFormat",
    "cifar10": "data_sharding.formats.cifar10:Cifar10Format",
    "mnist": "data_sharding.formats.mnist:MnistFormat",
    "npz": "data_sharding.formats.numpy_arrays:NumpyFormat",
    "recordio": "data_sharding.formats.recordio:RecordIOFormat",
    "tar": "data_sharding.formats.tar:TarFormat",
    "parquet": "data_sharding.formats.parquet:ParquetFormat",
    "image_folder": "data_sharding.formats.image_folder:ImageFolderFormat",
    "text": "data_sharding.formats.text_file:TextFormat",
}
"""Name → class, in the order in which file names are tried. Imported on first use: some need an extra."""

FORMAT_NAMES: Final = tuple(_FORMATS)


def format_named(name: str, options: Mapping[str, Any] | None = None) -> RecordFormat:
    """The format `name` with `options`, such as `{"multipart": "sagemaker"}` for recordio; numbers may be text.

    Raises:
        PlanError: no such format, no such option, or a value of another type than the option has.
    """
    if name not in _FORMATS:
        near = difflib.get_close_matches(name, _FORMATS, 1)
        raise PlanError(
            f"There is no record format {name!r}.",
            f"The formats are {', '.join(_FORMATS)}.",
            f"did you mean {near[0]!r}?" if near else "choose one of these.",
        )
    module, _, class_name = _FORMATS[name].partition(":")
    kind = getattr(importlib.import_module(module), class_name)
    known = {field.name: field.default for field in dataclasses.fields(kind)}
    fitted: dict[str, Any] = {}
    for option, value in (options or {}).items():
        if option not in known:
            raise PlanError(
                f"The format {name} has no option {option!r}.",
                f"Its options are: {', '.join(known) or 'none'}.",
                "leave it out, or correct its name.",
            )
        fitted[option] = _fitted(value, type(known[option]))
        if type(fitted[option]) is not type(known[option]):
            raise PlanError(
                f"The format {name} was given {option}={value!r}.",
                f"It takes a value of the type {type(known[option]).__name__}, such as {known[option]!r}.",
                f"correct {option}, or leave it out.",
            )
    made: RecordFormat = kind(**fitted)
    return made


def _fitted(value: Any, kind: type) -> Any:
    """A value in the type of an option, from text as a command line has it, or from JSON; itself if it does not fit."""
    if isinstance(value, str) and kind is bool:
        return {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, str | list) and kind is tuple:
        return tuple(value.split(",") if isinstance(value, str) else value)
    if (isinstance(value, str) and kind in (int, float)) or (type(value) is int and kind is float):
        with contextlib.suppress(ValueError, OverflowError):
            return kind(value)
    return value


def format_options(record_format: RecordFormat) -> dict[str, Any]:
    """The options that `format_named` needs to make an equal format."""
    fields = dataclasses.fields(record_format)  # type: ignore[arg-type]
    return {field.name: getattr(record_format, field.name) for field in fields}


def format_of(paths: Paths) -> RecordFormat:
    """The format that the names of `paths` (files, folders, globs, URLs) suggest; TFRecord where they say nothing.

    Raises:
        PlanError: a folder holds files of several formats.
    """
    first = str(paths if isinstance(paths, str | os.PathLike) else next(iter(paths), ""))
    if "://" not in first and os.path.isdir(first):
        return _format_of_folder(first)
    for name in _FORMATS:
        candidate = format_named(name)
        if matches(first, candidate.patterns):
            return candidate
    return format_named("tfrecord")


def _format_of_folder(folder: str) -> RecordFormat:
    subfolders, names = listing(folder)
    candidates = [format_named(name) for name in _FORMATS if name != _LAST]
    found = [f for f in candidates if any(matches(name, f.patterns) for name in names)]
    # A saved catalog or a preview picture beside records does not make the folder one of arrays or of images.
    found = [f for f in found if f.name not in _OFTEN_BESIDE] or found
    if len(found) > 1:
        raise PlanError(
            f"{folder} holds files of the formats {' and '.join(f.name for f in found)}.",
            "They cannot be read as one data set.",
            "name the files with a glob, or the format.",
        )
    nested = [f for f in candidates if f.recursive] if subfolders and not found else []
    if found or nested:
        return (found or nested)[0]
    return format_named(_LAST if any(matches(name, format_named(_LAST).patterns) for name in names) else "tfrecord")


_OFTEN_BESIDE: Final = ("npz", "image_folder")
_LAST: Final = "text"  # notes and lists of names are found beside any data, and above folders of images
