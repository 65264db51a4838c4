"""How a run of a program's own loop has ended, as its folder tells it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.history.overview import overview

ENDS = """
import sys, hvdtrain.torch as hvd
from hvdtrain.errors import UsageError
hvd.init()
for number, code in enumerate([None, 0, hvd.RESUMABLE, 3, "no such file"]):
    try:
        with hvd.run(f"{sys.argv[1]}/{number}") as run:
            run.log(4, loss=0.5)
            sys.exit(code)
    except SystemExit as error:
        assert error.code == code
with hvd.run(f"{sys.argv[1]}/5") as run:
    run.log(1, loss=float("nan"))
    try:
        run.log(2, split=1.0)
    except UsageError as error:
        assert "A metric is called 'split'" in str(error), error
    else:
        sys.exit("it was written")
"""


def test_a_script_that_ends_itself_in_the_block_has_failed_with_an_exit_code_of_failure_only(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ENDS, str(tmp_path)], check=True, timeout=240)
    states = [overview(tmp_path / str(number)).state for number in range(6)]
    words = ["finished", "finished", "stopped", "failed", "failed", "finished"]
    assert [state.word for state in states] == words
    assert states[2].note.startswith("a request to stop has ended it")
    assert [state.note for state in states[3:5]] == ["SystemExit: 3", "SystemExit: no such file"]
    lines = (tmp_path / "5" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail).get("loss", "none") for line in lines] == [
        "none",
        None,
        "none",
    ]
    reports = [(tmp_path / str(number) / "report.html").exists() for number in range(6)]
    assert reports == [word != "failed" for word in words]
