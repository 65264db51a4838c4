"""Patches of the source release apply exactly, each hunk at its own line, or stop the build."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.errors import HvdtrainError
from hvdtrain.horovod_wheel.source import apply_patch, patches_digest, series

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
NAMES = [patch.name for patch in series()]
BY_NAME = {patch.name: patch for patch in series()}


def before(patch: Path, tree: Path) -> None:
    """Files in `tree` that `patch` fits: the old lines of each hunk at their place, and other lines elsewhere."""
    for path, hunks in hunks_of(patch):
        if hunks[0][0] == 0:  # it makes this file
            (tree / path).unlink(missing_ok=True)
            continue
        lines: list[str] = []
        for start, rows in hunks:
            lines += [f"line {number}" for number in range(len(lines) + 1, start)]
            lines += [row[1:] for row in rows if row[0] in " -"]
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join([*lines, "last line", ""]), encoding="utf-8")


def hunks_of(patch: Path) -> list[tuple[str, list[tuple[int, list[str]]]]]:
    """Path → (line, rows) of each hunk, by the numbers in its head."""
    files: list[tuple[str, list[tuple[int, list[str]]]]] = []
    for line in patch.read_text(encoding="utf-8").split("\n"):
        head = HUNK.match(line)
        if line.startswith("+++ b/"):
            files.append((line.removeprefix("+++ b/"), []))
        elif head is not None:
            files[-1][1].append((int(head[1]), []))
        elif files and files[-1][1] and line[:1] in tuple(" +-") and not line.startswith("--- a/"):
            files[-1][1][-1][1].append(line)
    return files


def contents(tree: Path) -> dict[str, str]:
    return {str(file.relative_to(tree)): file.read_text() for file in sorted(tree.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_every_patch_does_what_patch_does_with_it(tmp_path: Path, name: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for tree in (ours, theirs):
        before(BY_NAME[name], tree)
    old = contents(ours)
    apply_patch(BY_NAME[name], ours)
    found = contents(ours)
    assert all(found[path] != text and found[path].endswith("last line\n") for path, text in old.items())
    if shutil.which("patch") is None:
        pytest.skip("there is no `patch` here to compare with")
    with BY_NAME[name].open("rb") as diff:
        subprocess.run(["patch", "-s", "-F0", "-p1"], stdin=diff, cwd=theirs, check=True, timeout=60)
    assert contents(ours) == contents(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_fits_neither_its_own_result_nor_text_that_was_moved(tmp_path: Path, name: str) -> None:
    patch = BY_NAME[name]
    before(patch, tmp_path)
    apply_patch(patch, tmp_path)
    with pytest.raises(HvdtrainError, match=f"{re.escape(name)} does not apply"):
        apply_patch(patch, tmp_path)
    before(patch, tmp_path)
    for path, _ in hunks_of(patch):
        file = tmp_path / path
        file.write_text("one more line\n" + (file.read_text() if file.exists() else ""))
    with pytest.raises(HvdtrainError, match="at line"):
        apply_patch(patch, tmp_path)


def test_a_missing_file_fails_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(HvdtrainError, match=r"CMakeLists\.txt"):
        apply_patch(series()[0], tmp_path)


def test_every_patch_says_why_and_its_heads_count_its_lines() -> None:
    for patch in series():
        reason, _, diff = patch.read_text(encoding="utf-8").partition("\n\n")
        assert len(reason) > 20
        assert diff.startswith("--- a/")
        counts = [(int(olds or 1), int(news or 1)) for _, olds, _, news in HUNK.findall(diff)]
        rows = [rows for _, hunks in hunks_of(patch) for _, rows in hunks]
        assert [tuple(sum(row[0] in f" {sign}" for row in each) for sign in "-+") for each in rows] == counts


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all patches."""
    return Path(shutil.copytree(series()[0].parent, tmp_path_factory.mktemp("series") / "patches"))


@settings(max_examples=40)
@given(name=st.sampled_from(NAMES), place=st.integers(0, 10_000), more=st.text(min_size=1).filter(str.isprintable))
def test_any_change_of_any_patch_changes_the_digest(copied: Path, name: str, place: int, more: str) -> None:
    assert patches_digest(copied) == patches_digest()
    text = (copied / name).read_text(encoding="utf-8")
    (copied / name).write_text(text[:place] + more + text[place:], encoding="utf-8")
    changed = patches_digest(copied)
    (copied / name).write_text(text, encoding="utf-8")
    assert changed != patches_digest()


def test_a_patch_that_is_missing_changes_the_digest(copied: Path) -> None:
    (copied / NAMES[0]).unlink()
    assert patches_digest(copied) != patches_digest()
