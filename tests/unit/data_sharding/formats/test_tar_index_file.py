"""Indexes of wds2idx beside tar shards: as good as the headers where they fit, and named where they do not."""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.range_server import RangeServer, serving

import data_sharding as ds

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
PLAIN = [(f"{number:03}.{kind}", bytes(700 * number + 1)) for number in range(30) for kind in ("jpg", "cls")]
ODD = [
    ("__meta__/about.json", b"{}"),
    ("a/", None),
    (f"a/{'long' * 40}.jpg", bytes(513)),
    (f"a/{'long' * 40}.cls", b""),
    ("a/.hidden", bytes(3000)),
    ("readme", b"no sample"),
    *((f"b/{number}.TXT", b"text") for number in range(20)),
    ("b/", None),
]


def archive(path: Path, members: Sequence[tuple[str, bytes | None]], style: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=style) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = (tarfile.DIRTYPE, 0) if content is None else (tarfile.REGTYPE, len(content))
            tar.addfile(info, io.BytesIO(content or b""))
    return path


def index(path: Path) -> Path:
    """As wds2idx: consecutive members of one stem in a line; hidden files are left out."""
    lines: list[tuple[str, list[str]]] = []
    with tarfile.open(path) as tar:
        for member in tar:
            base = member.name.rpartition("/")[2]
            stem, _, extension = base.partition(".")
            if not member.isfile() or not stem:
                continue
            stem = member.name[: len(member.name) - len(base)] + stem
            if not lines or lines[-1][0] != stem:
                lines.append((stem, []))
            lines[-1][1].append(f"{extension or member.name} {member.offset_data} {member.size} {member.name}")
    written = path.with_suffix(".idx")
    written.write_text(f"v1.2 {len(lines)}\n" + "".join(f"{' '.join(parts)}\n" for _, parts in lines))
    return written


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING)
    return lambda: [record.message for record in caplog.records]


def scanned(path: Path) -> ds.Catalog:
    """From the headers."""
    return ds.Catalog.index(path, check_data=True)


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("members", [PLAIN, ODD], ids=["plain", "odd"])
def test_an_index_gives_what_the_headers_give(
    tmp_path: Path, members: list[tuple[str, bytes | None]], style: str, warnings: Callable[[], list[str]]
) -> None:
    if style == "ustar":
        members = [each for each in members if "long" not in each[0]]
    path = archive(tmp_path / "a.tar", members, FORMATS[style])
    index(path)
    assert ds.Catalog.index(path).fingerprint == scanned(path).fingerprint
    assert warnings() == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1200)), min_size=1, max_size=30, unique_by=lambda t: t[0]))
def test_any_archive(tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]]) -> None:
    members = [(f"{key}.{kind}", bytes(size)) for key, size in sizes for kind in ("a", "b")]
    path = archive(tmp_path_factory.mktemp("any") / "a.tar", members)
    index(path)
    assert ds.Catalog.index(path).fingerprint == scanned(path).fingerprint


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RangeServer]:
    with serving(tmp_path) as server:
        yield server


def test_of_a_remote_archive_little_is_read(tmp_path: Path, store: RangeServer) -> None:
    members = [(f"{number:04}.jpg", bytes(20_000)) for number in range(400)]
    path = archive(tmp_path / "a.tar", members)
    expected = scanned(path)
    index(path)
    store.reset()
    assert ds.Catalog.index(f"{store.url}/a.tar").fingerprint == expected.fingerprint
    assert store.bytes < 0.01 * path.stat().st_size
    assert store.requests < 40


def broken(text: str, how: str) -> str:
    head, *lines = text.splitlines(keepends=True)
    return {
        "version": text.replace("v1.2", "v1.1", 1),
        "count": f"v1.2 {len(lines) + 1}\n{''.join(lines)}",
        "nothing": "v1.2 0\n",
        "a sample less": f"v1.2 {len(lines) - 1}\n{''.join(lines[:-1])}",
        "order": f"{head}{''.join(reversed(lines))}",
        "name with a space": text.replace("000.jpg", "000 .jpg"),
        "other name": text.replace("000.jpg", "001.jpg"),
        "no number": text.replace("jpg 512 ", "jpg five ", 1),
        "offset": text.replace("jpg 512 ", "jpg 513 ", 1),
        "size": text.replace(" 1 029.cls", " 2 029.cls").replace(" 20301 029.cls", " 20302 029.cls"),
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        *("version", "count", "nothing", "a sample less", "order"),
        *("name with a space", "other name", "no number", "offset", "size"),
    ],
)
def test_an_index_that_does_not_fit_is_named_and_not_used(
    tmp_path: Path, how: str, warnings: Callable[[], list[str]]
) -> None:
    path = archive(tmp_path / "a.tar", PLAIN)
    written = index(path)
    text = written.read_text()
    written.write_text(broken(text, how))
    assert written.read_text() != text
    assert ds.Catalog.index(path).fingerprint == scanned(path).fingerprint
    (said,) = warnings()
    assert "The index beside" in said
    assert "is not used: " in said


def test_a_sample_that_is_not_in_the_index_is_found(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", PLAIN)
    written = index(path)
    _, *lines = written.read_text().splitlines(keepends=True)
    written.write_text(f"v1.2 {len(lines) - 1}\n{''.join(lines[:9] + lines[10:])}")
    assert ds.Catalog.index(path).fingerprint == scanned(path).fingerprint


def test_an_index_of_an_archive_that_has_grown_is_not_used(tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    path = archive(tmp_path / "a.tar", PLAIN[:-2])
    index(path)
    archive(path, PLAIN)
    assert len(ds.Catalog.index(path)) == 30
    assert len(warnings()) == 1


def test_damage_is_named_as_without_an_index(tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    path = archive(tmp_path / "a.tar", PLAIN)
    index(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - tarfile.RECORDSIZE)
    with pytest.raises(ds.CorruptRecordError) as with_index:
        ds.Catalog.index(path)
    with pytest.raises(ds.CorruptRecordError) as without:
        scanned(path)
    assert with_index.value.fact == without.value.fact
    assert len(warnings()) == 1


def test_other_files_of_that_ending_are_passed_over(tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    path = archive(tmp_path / "a.tar", PLAIN)
    path.with_suffix(".idx").write_bytes(b"\0\0\1\3 of something else")
    assert len(ds.Catalog.index(path)) == 30
    assert warnings() == []
