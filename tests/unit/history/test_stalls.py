"""What a watchdog has left, as far as it can be read."""

from __future__ import annotations

from pathlib import Path

from hvdtrain.history.run_events import read_stalls


def test_the_newest_explanations(tmp_path: Path) -> None:
    for number in range(25):
        folder = tmp_path / "stalls" / f"2026-{number:02d}"
        folder.mkdir(parents=True)
        if number != 24:  # whose ranks were still writing
            (folder / "explanation.txt").write_text(f"Rank {number} waits.\n")
    (tmp_path / "stalls" / "2026-23" / "explanation.txt").write_bytes(b"x" * 2**20)
    (tmp_path / "stalls" / "notes.txt").write_text("somebody's")
    stalls, problems = read_stalls(tmp_path)
    assert list(stalls.items())[-1] == ("2026-22", "Rank 22 waits.")
    assert len(stalls) <= 20
    assert len(problems) == 1
    assert problems[0].startswith("stalls/2026-23/explanation.txt")
    assert read_stalls(tmp_path / "none") == ({}, [])
