"""report.html at the end of a training: what it costs is seconds at most, and never the run."""

import logging
from pathlib import Path
from typing import Final, Literal

from hvdtrain.history.json_lines import size_of
from hvdtrain.history.run_state import RunState

_SHORTEST_SECONDS: Final = 10.0
_MOST_BYTES: Final = 2**28
"""Of metrics.jsonl: to read it takes seconds, in which the other workers wait."""

_log = logging.getLogger("hvdtrain.run")


def write_report(run: Path, option: Literal["auto", "always", "never"], seconds: float, finished: bool) -> Path | None:
    """Write the report of the run in the folder `run`; where it lies, or None where there is none. Never raises.

    Args:
        option: of --report.
        seconds: that the training took; a short one gets a report only where it is asked for.
        finished: whether all was trained; else it was stopped.
    """
    if option == "never" or (option == "auto" and seconds < _SHORTEST_SECONDS):
        return None
    if option == "auto" and size_of(run / "metrics.jsonl") > _MOST_BYTES:
        _log.info("no report.html was made: metrics.jsonl is large; `hvdtrain report %s` makes it", run)
        return None
    try:
        from hvdtrain.report.file import NAME, read_runs, write_page

        write_page(run / NAME, read_runs([run], RunState("finished" if finished else "stopped")))
    except Exception as error:  # a defect here must not cost the run, which is done
        _log.warning("report.html was not written: %s: %s", type(error).__name__, error)
        _log.debug("why report.html was not written", exc_info=True)
        return None
    return run / NAME
