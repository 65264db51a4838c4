"""report.html at the end of a training: what it costs is seconds at most, and never the run."""

import logging
from pathlib import Path
from typing import Final, Literal

from hvdtrain.history.lines import size_of
from hvdtrain.history.metrics_end import read_metrics_end
from hvdtrain.history.run_facts import read_result
from hvdtrain.history.run_state import state_at_end

_SHORTEST_SECONDS: Final = 10.0
_MOST_BYTES: Final = 2**28
"""Of metrics.jsonl: to read it takes seconds, in which the other workers wait."""

_log = logging.getLogger("hvdtrain.run")


def write_report(run: Path, option: Literal["auto", "always", "never"], seconds: float) -> Path | None:
    """Write the report of the run in the folder `run`; where it lies, or None where there is none. Never raises.

    Args:
        option: of --report.
        seconds: that the training took; a short one gets a report only where it is asked for.
    """
    if option == "never" or (option == "auto" and seconds < _SHORTEST_SECONDS):
        return None
    if option == "auto" and size_of(run / "metrics.jsonl") > _MOST_BYTES:
        _log.info("no report.html was made: metrics.jsonl is large; `hvdtrain report %s` makes it", run)
        return None
    try:
        from hvdtrain.report.page_file import NAME, read_runs, write_page

        state = state_at_end(read_result(run), read_metrics_end(run / "metrics.jsonl"))
        write_page(run / NAME, read_runs([run], state))
    except Exception as error:  # a defect here must not cost the run, which is done
        _log.warning("report.html was not written: %s: %s", type(error).__name__, error)
        _log.debug("why report.html was not written", exc_info=True)
        return None
    return run / NAME
