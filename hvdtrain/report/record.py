"""All that a page tells of one run, read from its folder as far as it can be read."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from data_sharding.errors import ShardingError
from hvdtrain.audit.audit_summary import CoverageReport, read_coverage
from hvdtrain.audit.ledger import CATALOG, LEDGER
from hvdtrain.checkpoints.inspection import Entry, entries
from hvdtrain.errors import HvdtrainError
from hvdtrain.history.metrics import MetricsHistory, read_metrics
from hvdtrain.history.metrics_end import read_metrics_end
from hvdtrain.history.reading import JsonLines, Progress, mapping, number, size_of, text, whole
from hvdtrain.history.run_events import read_stalls
from hvdtrain.history.run_facts import RunFacts, read_facts
from hvdtrain.history.run_state import RunState, is_locked, state_of, telling_heartbeats, tells_end

_MOST_CHECKPOINTS: Final = 1000
_MOST_RECORDS: Final = 2 * 10**9  # of a proof, in all epochs together: a bit each
_MOST_BYTES: Final = 2**27  # of the ledger and of the catalog


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    sign: str  # a letter by which charts and tables name it among several runs; "" where it is alone
    facts: RunFacts
    state: RunState
    metrics: MetricsHistory
    proof: CoverageReport | str  # of which records were used; or why there is none, in a sentence or two
    checkpoints: list[Entry]
    stalls: dict[str, str]  # as `read_stalls` has them
    problems: tuple[str, ...]  # what could not be read, in sentences

    @property
    def name(self) -> str:
        """Of its folder, without the way there."""
        return self.facts.path.resolve().name or str(self.facts.path)

    @property
    def short(self) -> str:
        """How tables and legends name it."""
        return f"{self.sign} {self.name}" if self.sign else self.name

    @property
    def result(self) -> dict[str, Any]:
        """result.json; empty where there is none, or the run was continued after it."""
        return dict(self.facts.result or {}) if tells_end(self.state) else {}

    @property
    def what(self) -> str:
        """Its task and framework: "digits in torch"."""
        task = text(self.result, "task") or text(self.facts.config, "task")
        framework = text(self.result, "framework") or text(self.facts.config, "framework")
        framework = "" if framework == "auto" else framework
        return " in ".join(filter(None, (task, framework))) or self.name

    @property
    def workers(self) -> int | None:
        """How many there were in the last start; None where nothing tells."""
        known = whole(self.result, "world_size") or whole(mapping(self.facts.environment, "topology"), "size")
        return known or len(self.metrics.ranks.sums) or self.metrics.summaries.ranks or None

    @property
    def steps(self) -> int:
        """Updates that the weights have, as far as it is known."""
        return max(whole(self.result, "steps") or 0, self.metrics.last_step)

    @property
    def seconds(self) -> float | None:
        """That all its starts took together, without the times between one that ended and the next."""
        goodput = mapping(self.result, "goodput") or self.metrics.goodput.result()
        total = number(mapping(goodput, "seconds"), "total")
        return total or number(mapping(self.result, "seconds"), "total")


def read_record(
    run: Path, sign: str = "", state: RunState | None = None, progress: Progress | None = None
) -> RunRecord:
    """Read the run in the folder `run`; `state` is given where the caller knows it better than the folder. Raises
    UsageError where there is no run."""
    facts = read_facts(run)
    if state is None:
        end, locked = read_metrics_end(run / "metrics.jsonl"), is_locked(run)
        state = state_of(run, facts.result, end, telling_heartbeats(run, end, locked), locked)
    metrics = read_metrics(run, progress)
    stalls, unread = read_stalls(run)
    problems = [*facts.problems, *metrics.problems, *unread]
    if (
        facts.result is None
        and state.word not in ("running", "failed")
        and not any("result.json" in p for p in problems)
    ):
        problems.append("There is no result.json: what the run came to is taken from metrics.jsonl.")
    checkpoints = list(_checkpoints(run, problems))
    return RunRecord(sign, facts, state, metrics, _proof(run), checkpoints, stalls, tuple(problems))


def _checkpoints(run: Path, problems: list[str]) -> Iterator[Entry]:
    """The newest ones, the oldest of these first."""
    try:
        folder = run / "checkpoints"
        if folder.is_dir() and any(folder.glob("step_*")):
            yield from entries(folder)[-_MOST_CHECKPOINTS:]
    except (HvdtrainError, OSError, ValueError, TypeError, KeyError) as error:  # manifests of any version
        reason = error.fact if isinstance(error, HvdtrainError) else f"{type(error).__name__}: {error}"
        problems.append(f"The checkpoints cannot be listed: {reason}.".replace("..", "."))


def _proof(run: Path) -> CoverageReport | str:
    """Replay the run's audit; or else why there is no proof, in a sentence or two."""
    folder = run / "audit"
    try:
        if not folder.is_dir():
            return "The run holds no audit: nothing says which records its training used."
        if _is_large(folder):
            return (
                f"The account of records is too large to be read here: `hvdtrain shard verify {shlex.quote(str(run))}`."
            )
        return read_coverage(run)
    except (HvdtrainError, ShardingError) as error:
        return f"{error.fact} {error.conflict}"
    except Exception as error:  # files that anybody may have written; the rest of the page can still be shown
        return f"The audit cannot be read: {type(error).__name__}: {error}"


def _is_large(folder: Path) -> bool:
    if max(size_of(folder / LEDGER), size_of(folder / CATALOG)) > _MOST_BYTES:
        return True
    records, per_epoch, end = 0.0, 1.0, 0.0
    for line in JsonLines(folder / LEDGER):
        records = max(records, number(line, "records") or 0.0)
        per_epoch = number(line, "steps_per_epoch") or per_epoch
        end = max(end, number(line, "end") or 0.0)
    return records * (end / per_epoch + 1) > _MOST_RECORDS
