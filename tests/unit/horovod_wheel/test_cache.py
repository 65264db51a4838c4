"""The cache holds whole wheels only, whatever ends a build, and one process at a time fills an entry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.horovod_wheel.wheel_cache import WheelCache, cache_folder

KEY = "0123456789abcdef"

# Holds the lock, says so, and waits to be told to go on; "build" begins a wheel in between.
HOLDER = f"""
import sys
from pathlib import Path
from signal import SIGINT, SIGTERM
from hvdtrain.horovod_wheel.wheel_cache import WheelCache
from hvdtrain.end_signals import exiting_at
cache = WheelCache(Path(sys.argv[1]))
with exiting_at((SIGINT, SIGTERM)), cache.locked({KEY!r}, 10.0), cache.building({KEY!r}) as folder:
    (folder / "half.whl").write_bytes(b"half")
    print("held", flush=True)
    sys.stdin.readline()
    (folder / "half.whl").unlink()
    from zipfile import ZipFile
    with ZipFile(folder / "whole.whl", "w") as wheel:
        wheel.writestr("content", "by the holder")
"""


def make_wheel(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("horovod/__init__.py", "x = 1\n" * 1000)


def start_holder(base: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(base)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def close(holder: subprocess.Popen[str]) -> None:
    holder.communicate(timeout=60)


def test_a_finished_build_is_found(tmp_path: Path) -> None:
    cache = WheelCache(tmp_path)
    assert cache.find(KEY) is None
    with cache.building(KEY) as folder:
        make_wheel(folder / "a.whl")
        assert cache.find(KEY) is None
    assert cache.find(KEY) == cache.entry(KEY) / "a.whl"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = WheelCache(tmp_path)
    with pytest.raises(FileNotFoundError), cache.building(KEY) as folder:
        (folder / "missing" / "a.whl").write_bytes(b"")
    assert cache.find(KEY) is None
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_killed_build_leaves_no_entry_frees_its_lock_and_the_next_one_works(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    holder.send_signal(signal.SIGKILL)
    close(holder)
    cache = WheelCache(tmp_path)
    with cache.locked(KEY, 10.0):
        assert cache.find(KEY) is None
        with cache.building(KEY) as folder:
            assert list(folder.iterdir()) == []
            make_wheel(folder / "a.whl")
    assert cache.find(KEY) is not None


def test_a_build_that_is_interrupted_clears_up_and_more_signals_do_not_stop_it(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    folder = tmp_path / "wheels" / f".building-{KEY}"
    for number in range(2000):
        (folder / f"{number}.o").touch()
    holder.send_signal(signal.SIGINT)
    while holder.poll() is None:
        holder.send_signal(signal.SIGTERM)
    close(holder)
    # Where both signals are pending at once, Python may enter the handler of either one first.
    assert holder.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert not folder.exists()


def test_the_second_waits_for_the_first_and_then_finds_its_wheel(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    assert holder.stdin is not None
    cache = WheelCache(tmp_path)
    with pytest.raises(HvdtrainError, match="has held the lock"), cache.locked(KEY, 0.05):
        pass
    holder.stdin.write("go on\n")
    holder.stdin.flush()
    with cache.locked(KEY, 20.0):
        found = cache.find(KEY)
    close(holder)
    assert found is not None
    assert found.name == "whole.whl"


def test_locks_of_different_wheels_do_not_disturb_each_other(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    with WheelCache(tmp_path).locked("another", 0.05):
        pass
    close(holder)


def test_a_damaged_wheel_is_removed(tmp_path: Path) -> None:
    cache = WheelCache(tmp_path)
    with cache.building(KEY) as folder:
        make_wheel(folder / "a.whl")
    file = cache.entry(KEY) / "a.whl"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert cache.find(KEY) is None
    assert not cache.entry(KEY).exists()


def test_the_folder_is_the_users_own_choice_then_xdg_then_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HVDTRAIN_CACHE_DIR", raising=False)
    assert cache_folder() == tmp_path / "home" / ".cache" / "hvdtrain"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "hvdtrain"
    monkeypatch.setenv("HVDTRAIN_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert os.access(tmp_path / "own", os.W_OK)


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    monkeypatch.setenv("HVDTRAIN_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(UsageError, match="HINT: set HVDTRAIN_CACHE_DIR"):
        cache_folder()
