"""Objects on their way to workers: what is refused, and that only one's own files are read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.tasks.by_value import packed, unpacked


def test_a_closure_comes_back(tmp_path: Path) -> None:
    offset, file = 3, tmp_path / "closure"
    file.write_bytes(packed(lambda x: x + offset, "It", "no hint."))
    assert unpacked(file, "the function")(4) == 7


def test_what_cannot_be_pickled_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match=r"^The class A cannot be pickled: TypeError: .*lock") as refused:
        packed(threading.Lock(), "The class A", "open it later.")
    assert refused.value.hint == "open it later."


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_file_in_a_folder_that_others_can_open_is_not_read(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "sent"
    file.write_bytes(packed(print, "It", ""))
    tmp_path.chmod(mode)
    with pytest.raises(UsageError, match="cannot be read: others could have written it"):
        unpacked(file, "the function")


def test_the_mode_of_the_file_itself_follows_the_umask(tmp_path: Path) -> None:
    file = tmp_path / "sent"
    file.write_bytes(packed(print, "It", ""))
    file.chmod(0o664)
    assert unpacked(file, "the function") is print


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x05cno_such_module\nname\n."])
def test_garbage_is_refused_in_words(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "sent"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="^The function cannot be loaded: "):
        unpacked(file, "the function")


def test_a_missing_file_says_that_hosts_share_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file") as refused:
        unpacked(tmp_path / "none", "the function")
    assert "shared_folder=" in refused.value.hint
