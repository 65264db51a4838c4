"""All formats by name, and which one a path holds.

A format of this package is a file beside this one, and a line in `_BUILT_IN`. Other packages add theirs by entry points
(see `record_format`), which are looked up only for a name or a file that none of `_BUILT_IN` fits: that takes 15 ms.
"""

import contextlib
import dataclasses
import difflib
import glob
import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from data_sharding.errors import PlanError, ShardingError
from data_sharding.formats.record_format import RecordFormat
from data_sharding.storage import is_remote
from data_sharding.storage.file_entry import is_data, matches
from data_sharding.storage.input_files import Paths, listing

_BUILT_IN: Final = {
    "tfrecord": "data_sharding.formats.tfrecord:TFRecordFormat",
    "cifar10": "data_sharding.formats.cifar10:Cifar10Format",
    "mnist": "data_sharding.formats.mnist:MnistFormat",
    "npz": "data_sharding.formats.numpy_arrays:NumpyFormat",
    "recordio": "data_sharding.formats.recordio:RecordIOFormat",
    "tar": "data_sharding.formats.tar:TarFormat",
    "parquet": "data_sharding.formats.parquet:ParquetFormat",
    "mds": "data_sharding.formats.mds:MdsFormat",
    "arrow": "data_sharding.formats.arrow:ArrowFormat",
    "image_folder": "data_sharding.formats.image_folder:ImageFolderFormat",
    "text": "data_sharding.formats.text_file:TextFormat",
}
"""Name → class, in the order in which file names are tried. Imported on first use: some need an extra."""

_NOT_OF_FILES: Final = {
    "object": "data_sharding.objects.object_format:ObjectFormat",
    "joined": "data_sharding.formats.joined:JoinedFormat",
}
"""What saved catalogs name and no file holds."""

FORMAT_NAMES: Final = tuple(_BUILT_IN)
_OFTEN_BESIDE: Final = ("npz", "image_folder")
_LAST: Final = "text"  # notes and lists of names are found beside any data, and above folders of images
_GROUP: Final = "data_sharding.formats"

_log = logging.getLogger(__name__)


def choose_format(chosen: RecordFormat | str | None, paths: Paths) -> RecordFormat:
    """The format that a user names, or else the one that the names of `paths` suggest; errors as those."""
    named = format_named(chosen) if isinstance(chosen, str) else chosen or format_of(paths)
    return named.for_paths(paths)


def format_named(name: str, options: Mapping[str, Any] | None = None) -> RecordFormat:
    """The format `name` with `options`, such as `{"multipart": "sagemaker"}` for recordio; numbers may be text.

    Raises:
        PlanError: no such format, no such option, or a value of another type than the option has.
        ShardingError: the package that adds it cannot be used.
    """
    kind = _class_of(name)
    known = {field.name: field.default for field in dataclasses.fields(kind)}
    fitted: dict[str, Any] = {}
    for option, value in (options or {}).items():
        if option not in known:
            fact = f"The format {name} has no option {option!r}."
            conflict = f"Its options are: {', '.join(known) or 'none'}."
            raise PlanError(fact, conflict, "leave it out, or correct its name.")
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
    return dataclasses.asdict(record_format)  # type: ignore[call-overload, no-any-return]


def format_of(paths: Paths) -> RecordFormat:
    """The format that the names of `paths` (files, folders, globs, URLs) suggest; TFRecord where they say nothing.

    Errors as `format_named`, and PlanError (a folder holds files of several formats, or a name fits several).
    """
    first = str(paths if isinstance(paths, str | os.PathLike) else next(iter(paths), ""))
    if not is_remote(first) and os.path.isdir(first):
        return _format_of_folder(first)
    for path, unlikely in ((first, ()), (_first_match(first), (*_OFTEN_BESIDE, _LAST))):
        for name in (each for each in _BUILT_IN if each not in unlikely):
            candidate = format_named(name)
            if matches(path, candidate.patterns):
                return candidate
        if added := _only_one(path, _added_for([path])):
            return added
    return format_named("tfrecord")


def _first_match(pattern: str) -> str:
    """A local file that a glob means, whose name may say what the glob does not: "train-*"."""
    if is_remote(pattern) or os.path.exists(pattern):
        return ""
    found = (path for path in glob.glob(pattern, recursive=True) if is_data(os.path.basename(path)))
    return min(filter(os.path.isfile, found), default="")


def _format_of_folder(folder: str) -> RecordFormat:
    subfolders, names = listing(folder)
    candidates = [format_named(name) for name in _BUILT_IN]
    found = [f for f in candidates if any(matches(name, f.patterns) for name in names)]
    # A saved catalog or a preview picture beside records does not make the folder one of arrays or of images.
    likely = [f for f in found if f.name not in (*_OFTEN_BESIDE, _LAST)]
    likely = likely or [f for f in found if f.name != _LAST]
    likely = likely or _added_for([name for name in names if not any(matches(name, f.patterns) for f in candidates)])
    nested = [f for f in candidates if f.recursive and subfolders]
    return _only_one(folder, likely) or (*nested, *found, format_named("tfrecord"))[0]


def _only_one(path: str, formats: Sequence[RecordFormat]) -> RecordFormat | None:
    if len(formats) > 1:
        fact = f"{path} holds files of the formats {' and '.join(f.name for f in formats)}."
        raise PlanError(fact, "They cannot be read as one data set.", "name the files with a glob, or the format.")
    return formats[0] if formats else None


def _class_of(name: str) -> Any:
    if built_in := (_BUILT_IN | _NOT_OF_FILES).get(name):
        module, _, class_name = built_in.partition(":")
        return getattr(importlib.import_module(module), class_name)
    if name in (added := added_names()):
        return _added(name)
    names = [*_BUILT_IN, *added]
    near = difflib.get_close_matches(name, names, 1)
    fact = f"There is no record format {name!r}."
    conflict = f"The formats are {', '.join(names)}."
    raise PlanError(fact, conflict, f"did you mean {near[0]!r}?" if near else "choose one of these.")


def added_names() -> list[str]:
    """Names of the formats that installed packages add, sorted; a name of this package's own is not theirs to take."""
    from importlib.metadata import entry_points

    return sorted({point.name for point in entry_points(group=_GROUP)} - _BUILT_IN.keys())


def _added_for(files: Sequence[str]) -> list[RecordFormat]:
    """The added formats that hold one of these files or more; one that cannot be used is passed over with a warning."""
    if not any(is_data(file.rpartition("/")[2]) for file in files):
        return []
    formats = filter(None, map(_usable, added_names()))
    return [f for f in formats if any(matches(file, f.patterns) for file in files)]


def _usable(name: str) -> RecordFormat | None:
    """An added format, asked for nothing in particular: None, and a warning, if its package cannot be used."""
    try:
        return format_named(name)
    except ShardingError as error:
        _log.warning("%s", error)
        return None


def _added(name: str) -> Any:
    """The class that a package adds under `name`. Raises ShardingError if it cannot be used."""
    from importlib.metadata import entry_points

    points = entry_points(group=_GROUP, name=name)
    packages = ", ".join(sorted({p.dist.name if p.dist is not None else p.value for p in points}))
    (point, *others) = points
    if any(other.value != point.value for other in others):
        fact = f"Several packages add the record format {name!r}: {packages}."
        raise ShardingError(fact, "A name stands for one of them only.", "uninstall those that are not used here.")
    try:
        kind = point.load()
    except Exception as error:  # importing another's module can raise anything
        raise ShardingError(
            f"The record format {name!r} cannot be imported from {point.value}: {type(error).__name__}: {error}.",
            f"The package {packages} says that it is there.",
            "install that package again, with what it needs, or uninstall it.",
        ) from error
    is_format = isinstance(kind, type) and RecordFormat in kind.__mro__ and dataclasses.is_dataclass(kind)
    has_defaults = is_format and all(field.default is not dataclasses.MISSING for field in dataclasses.fields(kind))
    if not has_defaults or kind.name != name:
        raise ShardingError(
            f"{point.value} is not a record format of the name {name!r}.",
            f"The package {packages} says that it is, and a saved catalog finds its format by that name.",
            "make it a frozen dataclass that inherits from RecordFormat, has this name, and a default for each option.",
        )
    return kind
