"""Edits of the source release apply exactly once, or stop the build."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import HvdtrainError
from hvdtrain.horovod_wheel.edits import EDITS, Edit, apply_edits, edits_digest


def release_with(tree: Path, edits: tuple[Edit, ...]) -> None:
    """Files that hold the text before each edit, once, with other text around."""
    for edit in edits:
        file = tree / edit.path
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text(encoding="utf-8") if file.exists() else "first line\n"
        file.write_text(before + edit.old + "\nlast line\n", encoding="utf-8")


def test_every_edit_is_applied_and_the_rest_is_untouched(tmp_path: Path) -> None:
    release_with(tmp_path, EDITS)
    apply_edits(tmp_path)
    for edit in EDITS:
        text = (tmp_path / edit.path).read_text(encoding="utf-8")
        assert edit.old not in text
        assert edit.new in text
        assert text.startswith("first line\n")
        assert text.endswith("\nlast line\n")


def test_applying_twice_fails(tmp_path: Path) -> None:
    release_with(tmp_path, EDITS)
    apply_edits(tmp_path)
    with pytest.raises(HvdtrainError, match="0 times instead of once"):
        apply_edits(tmp_path)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.path)
def test_text_that_is_there_twice_fails(tmp_path: Path, edit: Edit) -> None:
    release_with(tmp_path, (edit, edit))
    with pytest.raises(HvdtrainError, match="2 times instead of once"):
        apply_edits(tmp_path, (edit,))


def test_a_missing_file_fails_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(HvdtrainError, match=r"CMakeLists\.txt"):
        apply_edits(tmp_path)


def test_every_edit_has_a_reason_and_no_edit_can_be_applied_to_its_own_result() -> None:
    for edit in EDITS:
        assert len(edit.reason) > 20
        assert edit.old not in edit.new


@given(
    position=st.integers(0, len(EDITS) - 1),
    field=st.sampled_from(["path", "old", "new", "reason"]),
    more=st.text(min_size=1),
)
def test_any_change_of_any_edit_changes_the_digest(position: int, field: str, more: str) -> None:
    edit = EDITS[position]
    changed = dataclasses.replace(edit, **{field: getattr(edit, field) + more})
    assert edits_digest((*EDITS[:position], changed, *EDITS[position + 1 :])) != edits_digest()
