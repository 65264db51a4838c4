"""How a run of a program's own loop has ended, as its folder tells it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hvdtrain.history.overview import overview

ENDS = """
import sys, hvdtrain.torch as hvd
hvd.init()
for number, code in enumerate([None, 0, hvd.RESUMABLE, 3, "no such file"]):
    try:
        with hvd.run(f"{sys.argv[1]}/{number}") as run:
            run.log(4, loss=0.5)
            sys.exit(code)
    except SystemExit as error:
        assert error.code == code
with hvd.run(f"{sys.argv[1]}/5"):
    pass
"""


def test_a_script_that_ends_itself_in_the_block_has_failed_with_an_exit_code_of_failure_only(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ENDS, str(tmp_path)], check=True, timeout=240)
    states = [overview(tmp_path / str(number)).state for number in range(6)]
    words = ["finished", "finished", "stopped", "failed", "failed", "finished"]
    assert [state.word for state in states] == words
    assert states[2].note.startswith("a request to stop has ended it")
    assert [state.note for state in states[3:5]] == ["SystemExit: 3", "SystemExit: no such file"]
    reports = [(tmp_path / str(number) / "report.html").exists() for number in range(6)]
    assert reports == [word != "failed" for word in words]
