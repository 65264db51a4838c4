"""Plans and manifests on disk, as JSON."""

import json
import os
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final, get_args

from data_sharding.atomic import atomic_file
from data_sharding.errors import CatalogError, MissingDataError, PlanError
from data_sharding.formats.record_format import scan_file
from data_sharding.formats.registry import format_named
from data_sharding.pipe.parsers import Framing
from data_sharding.pipe.pipe_plan import PipeChannel, PipeFile, PipePlan
from data_sharding.storage import describe_file, is_remote
from data_sharding.storage.input_files import Paths, find_files

_FIELDS: Final = {"prefix": str, "framing": str, "hosts": int, "workers_per_host": int, "distribution": str}
PLAN_FORMAT: Final = "data_sharding.pipe_plan/1"


def save_plan(plan: PipePlan, folder: str | Path) -> list[Path]:
    """Write `plan.json` and for each channel `<channel>.manifest` into a folder, which is made; return their paths.

    A manifest is SageMaker's ManifestFile, `[{"prefix": "s3://…"}, "key", …]` (API_S3DataSource): it names the objects
    of a channel where they are, instead of copies of them under a prefix of their own.

    What an earlier plan left there is replaced. Raises PlanError: plan.json is there already, and is no plan.
    """
    folder = Path(folder)
    earlier = _manifests_of_earlier(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "format": PLAN_FORMAT,
        **{name: getattr(plan, name) for name in _FIELDS},
        "records": plan.rank_records(),
        "channels": [
            {"name": c.name, "bytes": c.bytes, "records": c.records, "files": list(map(astuple, c.files))}
            for c in plan.channels
        ],
    }
    contents: dict[str, Any] = {"plan.json": described}
    for channel in plan.channels:
        contents[f"{channel.name}.manifest"] = [{"prefix": plan.prefix}, *(file.name for file in channel.files)]
    for name, content in contents.items():
        with atomic_file(folder / name) as file:
            file.write((json.dumps(content, indent=1) + "\n").encode())
    for name in earlier - contents.keys():  # a job would be given these files, too
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in contents]


def _manifests_of_earlier(folder: Path) -> set[str]:
    path = folder / "plan.json"
    if not path.is_file() or not path.stat().st_size:
        return set()
    try:
        return {f"{channel.name}.manifest" for channel in load_plan(path).channels}
    except (CatalogError, PlanError) as error:
        raise PlanError(
            f"{path} is there already, and is no plan: {error.fact}", "It would be lost.", "choose another folder."
        ) from error


def load_plan(path: str | Path) -> PipePlan:
    """Read a plan: its file, or the folder that `save_plan` wrote.

    Raises MissingDataError, CatalogError or PlanError.
    """
    path = Path(path)
    path = path / "plan.json" if path.is_dir() else path
    try:
        text = path.read_bytes()
    except OSError as error:
        fact = f"{path} cannot be opened: {error.strerror}."
        conflict = "Pipe mode needs the plan that says who reads which channel."
        raise MissingDataError(fact, conflict, "make it with `hvdtrain shard pipe-plan`.") from error
    try:
        return _from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CatalogError(
            f"{path} is not a pipe plan: {error}.",
            f"It should be JSON in the format {PLAN_FORMAT}.",
            "make it again with `hvdtrain shard pipe-plan`.",
        ) from error


def describe_files(sources: Paths, framing: Framing, count: bool = True) -> tuple[str, list[PipeFile]]:
    """Files, folders, globs or URLs as a plan takes them: (common folder with a slash at its end, files below it).

    Folders are searched for files with the framing's usual names. `count`: whether to count records, by their framing.
    Raises MissingDataError, CorruptRecordError or PlanError.
    """
    record_format = format_named(framing.partition("-")[0])  # how parts of a record are joined does not matter here
    paths = find_files(sources, (*record_format.patterns, *(("*.pbr",) if framing == "recordio-sagemaker" else ())))
    common = os.path.commonprefix(paths)
    prefix = common[: common.rfind("/") + 1]
    counts = [len(scan_file(record_format, path).offsets) if count else None for path in paths]
    files = [
        PipeFile(path.removeprefix(prefix), describe_file(path).size, records)
        for path, records in zip(paths, counts, strict=True)
    ]
    return prefix, files


def local_paths(plan: PipePlan, channel: PipeChannel, folder: str | Path | None = None) -> tuple[str, ...]:
    """Where the files of a channel are on this machine: below `folder`, or below the plan's prefix if that is a path.

    Raises PlanError (the prefix is a URL, and no folder is given).
    """
    if folder is None and is_remote(plan.prefix):
        fact = f"The plan's files are at {plan.prefix}."
        raise PlanError(fact, "Local copies are needed.", "say where copies of them are: --source DIR.")
    return tuple(str(Path(plan.prefix if folder is None else folder) / file.name) for file in channel.files)


def _from_json(content: Any) -> PipePlan:
    if content["format"] != PLAN_FORMAT:
        raise ValueError(f"its format is {content['format']!r}")
    if content["framing"] not in get_args(Framing):
        raise ValueError(f"its framing is {content['framing']!r}")
    fields = {name: _typed(content[name], kind) for name, kind in _FIELDS.items()}
    return PipePlan(**fields, channels=tuple(_channel(entry) for entry in content["channels"]))


def _channel(entry: Any) -> PipeChannel:
    files = tuple(
        PipeFile(_typed(name, str), _typed(size, int), None if records is None else _typed(records, int))
        for name, size, records in entry["files"]
    )
    channel = PipeChannel(_typed(entry["name"], str), files)
    if (channel.bytes, channel.records) != (entry["bytes"], entry["records"]):
        raise ValueError(f"the sums of channel {channel.name} are not those of its files")
    return channel


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} stands where {kind.__name__} should")
    return value
