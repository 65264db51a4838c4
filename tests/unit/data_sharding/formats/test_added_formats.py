"""A format that another package adds is found by name and by suffix, and used like one of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import added_packages

ROOT = Path(__file__).parents[4]

_MODULE = '''
from dataclasses import dataclass
import numpy as np
from data_sharding import RecordFormat, RecordIndex
from data_sharding.formats.record_format import Unpacked

@dataclass(frozen=True)
class LinesFormat(RecordFormat):
    """Lines of text, without their ends; `upper` hands them out in upper case."""

    upper: bool = False
    name = "lines"
    patterns = ("*.lines",)

    def scan(self, path, source, check_data):
        content = np.frombuffer(source[0 : source.size()], np.uint8)
        ends = np.flatnonzero(content == ord("\\n")) + 1
        begins = np.concatenate([[0], ends[:-1]])
        return RecordIndex(begins, ends - begins)

    def unpack(self, raw, crcs, check):
        payloads = [line.rstrip(b"\\n") for line in raw]
        return Unpacked([p.upper() for p in payloads] if self.upper else payloads, np.ones(len(raw), np.bool_))

class NoFormat:
    name = "nothing"
'''
_POINTS = "lines = lines_format:LinesFormat"

_LOAD = """
    import sys, numpy as np, data_sharding as ds
    paths, saved, processes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ds.Catalog.index(paths).save(saved)
    catalog = ds.Catalog.load(saved)
    plan = ds.ShardPlan.for_catalog(catalog, global_batch=2, seed=0, epoch=0, shuffle="none")
    from decoder import decode
    with ds.RecordReader(catalog) as reader:
        with ds.ShardLoader(plan, reader, decode, rank=0, size=1, processes=processes) as loader:
            print([bytes(text).decode() for batch in loader for text in batch.features["text"][batch.weights > 0]])
"""
_DECODER = """
    import numpy as np
    def decode(records):
        return {"text": np.array([bytes(payload) for payload in records], object)}
"""


def install(folder: Path, package: str, points: str, module: str = _MODULE) -> None:
    """A package that adds formats."""
    added_packages.install(folder, package, module, f"[data_sharding.formats]\n{points}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    install(folder, "lines-format", _POINTS)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.lines").write_bytes(b"one\ntwo\nthree\n")
    (folder / "b.lines").write_bytes(b"four\nfive\n")
    (folder / "README.txt").write_text("Notes beside the data do not change what they are.")
    return folder


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(site), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        cwd=site.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )


def refusal(site: Path, code: str) -> str:
    """The message of the ShardingError that `code` ends with."""
    run = python(
        site, "-c", f"import data_sharding as ds\ntry:\n    {code}\nexcept ds.ShardingError as e:\n    print(e)"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("HINT: ") == 1
    return run.stdout


@pytest.mark.parametrize("processes", [0, 1])
def test_a_folder_of_its_files_is_indexed_saved_and_loaded(site: Path, data: Path, processes: int) -> None:
    (site / "decoder.py").write_text(textwrap.dedent(_DECODER))
    saved = site.parent / "catalog.npz"
    run = python(site, "-c", textwrap.dedent(_LOAD), str(data), str(saved), str(processes))
    assert run.returncode == 0, run.stderr
    assert run.stdout == "['one', 'two', 'three', 'four', 'five']\n"


@pytest.mark.parametrize("arguments", [["a.lines"], ["x.data", "--format", "lines", "--option", "upper=true"]])
def test_shard_index_takes_it_by_suffix_and_by_name(site: Path, data: Path, arguments: list[str]) -> None:
    (data / "x.data").write_bytes(b"one\ntwo\nthree\n")
    run = python(site, "-m", "hvdtrain", "shard", "index", str(data / arguments[0]), *arguments[1:])
    assert run.returncode == 0, run.stderr
    table = {row[0]: row[-1] for row in map(str.split, run.stdout.splitlines()) if row}
    assert (table["format"], table["records"]) == ("lines", "3")


@pytest.mark.parametrize("path", ["./data/a.lines", "../{name}/data/a.lines", "data/.hidden/a.lines"])
def test_it_is_found_wherever_the_file_lies(site: Path, data: Path, path: str) -> None:
    (data / ".hidden").mkdir()
    (data / ".hidden" / "a.lines").write_bytes(b"one\n")
    code = f"import data_sharding as ds; print(ds.Catalog.index({path.format(name=site.parent.name)!r}).format.name)"
    run = python(site, "-c", code)
    assert run.stdout == "lines\n", run.stderr


def test_a_package_that_cannot_be_imported_does_not_spoil_another_one(site: Path, data: Path) -> None:
    install(site, "broken-format", "broken = broken_format:Missing", "import nothing_of_that_name")
    run = python(site, "-m", "hvdtrain", "shard", "index", str(data / "a.lines"))
    assert run.returncode == 0, run.stderr
    assert "broken" in run.stderr
    assert "broken" in refusal(site, "ds.format_named('broken')")


def test_its_options_are_checked_as_ours(site: Path) -> None:
    assert "has no option 'lower'" in refusal(site, "ds.format_named('lines', {'lower': 'true'})")


def test_unknown_names_are_answered_with_all_that_are_there(site: Path) -> None:
    message = refusal(site, "ds.format_named('line')")
    assert "text, lines." in message
    assert "did you mean 'lines'?" in message


def test_two_packages_with_one_name_are_refused(site: Path) -> None:
    install(site, "other-lines", "lines = other_lines:LinesFormat")
    message = refusal(site, "ds.format_named('lines')")
    assert message.startswith("Several packages add the record format 'lines': lines-format, other-lines.")


def test_one_that_cannot_be_imported_is_named(site: Path) -> None:
    (site / "lines_format.py").write_text("import no_such_module\n")
    message = refusal(site, "ds.format_named('lines')")
    assert "cannot be imported from lines_format:LinesFormat: ModuleNotFoundError" in message
    assert "The package lines-format" in message


@pytest.mark.parametrize("points", ["nothing = lines_format:NoFormat", "rows = lines_format:LinesFormat"])
def test_what_is_not_a_format_of_that_name_is_refused(site: Path, points: str) -> None:
    install(site, "wrong", points)
    name = points.partition(" ")[0]
    assert f"is not a record format of the name {name!r}" in refusal(site, f"ds.format_named({name!r})")


def test_files_that_fit_two_added_formats_are_refused(site: Path, data: Path) -> None:
    install(
        site,
        "rows",
        "rows = rows:RowsFormat",
        _MODULE.replace("LinesFormat", "RowsFormat").replace('"lines"', '"rows"'),
    )
    message = refusal(site, f"ds.Catalog.index({str(data)!r})")
    assert "holds files of the formats lines and rows" in message


def test_nothing_is_looked_up_where_ours_fit(site: Path, data: Path) -> None:
    """Looking takes longer than indexing a small file does."""
    (site / "lines_format.py").write_text("raise SystemExit('imported')\n")
    code = (
        "import sys, data_sharding as ds; f = ds.TFRecordWriter(sys.argv[1]); f.__enter__(); f.write(b'x'); "
        "f.__exit__(None, None, None); ds.Catalog.index(sys.argv[1]); ds.format_named('tar'); "
        "assert 'importlib.metadata' not in sys.modules"
    )
    run = python(site, "-c", code, str(data / "x.tfrecord"))
    assert run.returncode == 0, run.stderr
