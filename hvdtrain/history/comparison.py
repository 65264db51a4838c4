"""What differs between runs: in their configs, their environments, their data and their outcomes."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import UsageError
from hvdtrain.history.metrics_end import measures, read_metrics_end
from hvdtrain.history.overview import Overview, overview
from hvdtrain.history.reading import UNREADABLE, flattened, json_object, last_lines, mapping, number, text
from hvdtrain.history.run_facts import read_facts
from hvdtrain.history.run_state import tells_end
from hvdtrain.history.weight_hashes import SameBits, compare_bits, problem_of

_OWN_KEYS: Final = ("output_dir",)  # of the config: each run has its own
_OWN_FACTS: Final = (  # of the environment: the same is in the config, or it is one rank's
    *("argv", "topology.rank", "topology.local_rank", "topology.node_rank", "topology.local_size"),
)
_ORDER: Final = ("seed", "global_batch_size", "data.shuffle", "data.mode")
"""Which keys of the config decide, with the data, which records a step is made of."""


MISSING: Final = object()  # the value of a key that a mapping lacks


@dataclass(frozen=True)
class Difference:
    """A key whose values are not all equal."""

    key: str  # with those of outer mappings before it: "data.dir"
    values: tuple[Any, ...]  # one for each mapping, in their order; `MISSING` where a mapping lacks the key


@dataclass(frozen=True)
class Outcome:
    """One number of several runs."""

    name: str  # e.g. "accuracy".
    values: tuple[float | None, ...]  # one a run, None where a run does not say it
    is_speed: bool = False  # whether the ratio says more than the difference

    def changes(self) -> list[float | None]:
        """Against the first run: for each other one the difference, or the ratio for a speed."""
        first, *others = self.values

        def change(value: float | None) -> float | None:
            if first is None or value is None:
                return None
            if self.is_speed:
                return value / first if first else None
            return value - first

        return [change(value) for value in others]


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side. What differs is said against the first one."""

    runs: tuple[Overview, ...]  # at a glance
    config: list[Difference] | None  # options that differ; None where those of one run are unknown
    environment: list[Difference] | None  # the same of env.json
    outcomes: list[Outcome]  # numbers of their results, or of what they have reached so far
    weights: tuple[str, ...]  # SHA-256 of the final weights of each run, "" where it is unknown
    data: tuple[str, ...]  # fingerprints of the training data
    same_weights: bool | None  # whether all runs ended with equal ones; None if those of one are unknown
    same_data: bool | None  # whether all runs were trained on the same; None if that of one is unknown
    same_batches: bool | None  # whether each step was made of the same records
    bits: SameBits | None  # until which step they are the same; None where --hash-every was not given to all


def differences(mappings: Sequence[Mapping[str, Any]], ignored: Collection[str] = ()) -> list[Difference]:
    """The keys whose values differ, in the order in which they are first met; lists are compared as a whole. Keys that
    are `ignored` are left out with all that is inside of them."""
    flat = [dict(flattened(values, frozenset(ignored))) for values in mappings]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = (Difference(key, tuple(values.get(key, MISSING) for values in flat)) for key in keys)
    return [row for row in rows if not all(_equal(row.values[0], value) for value in row.values[1:])]


def _equal(first: Any, other: Any) -> bool:
    """By their text where they are not comparable or NaN; True is not 1."""
    return repr(first) == repr(other) or (first == other and isinstance(first, bool) == isinstance(other, bool))


def compare(folders: Sequence[Path]) -> Comparison:
    """Compare the runs in these folders, two or more. Raises UsageError: one holds no run, or two are the same."""
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UsageError(
            "Two runs or more can be compared, each given once.",
            f"Given {'is' if len(folders) == 1 else 'are'} {', '.join(map(str, folders)) or 'none'}.",
            "name different run folders; `hvdtrain ls` lists them.",
        )
    facts = [read_facts(folder) for folder in folders]
    data = tuple(_data(folder) for folder in folders)
    runs = tuple(_overview(folder) for folder in folders)
    results = [run_facts.result if tells_end(run.state) else None for run, run_facts in zip(runs, facts, strict=True)]
    weights = tuple(text(mapping(result, "weights"), "sha256") for result in results)
    configs = [run_facts.config for run_facts in facts]
    if all(run.framework for run in runs):  # which a config may leave to the task
        configs = [{**config, "framework": run.framework} for run, config in zip(runs, configs, strict=True) if config]
    config = _differences(configs, _OWN_KEYS) if all(run_facts.config for run_facts in facts) else None
    same_data = _all_equal(data)
    same_order = config is not None and not any(row.key in _ORDER for row in config)
    return Comparison(
        runs=runs,
        config=config,
        environment=_differences([run_facts.environment for run_facts in facts], _OWN_FACTS),
        outcomes=_outcomes([_result(run, result) for run, result in zip(runs, results, strict=True)]),
        weights=weights,
        data=data,
        same_weights=_all_equal(weights),
        same_data=same_data,
        same_batches=None if config is None or same_data is None else same_data and same_order,
        bits=compare_bits(folders),
    )


def _overview(folder: Path) -> Overview:
    """With what is wrong with its checksums."""
    run, problem = overview(folder), problem_of(folder)
    return replace(run, problems=(*run.problems, problem)) if problem else run


def _differences(sides: Sequence[Mapping[str, Any]], ignored: Sequence[str]) -> list[Difference] | None:
    return differences(sides, ignored) if all(sides) else None


def as_json(comparison: Comparison) -> dict[str, Any]:
    """For scripts: one value a run in each list, `null` where a run has none."""
    return {
        "runs": [{"path": str(run.path), "state": run.state.word, "note": run.state.note} for run in comparison.runs],
        "config": _rows(comparison.config),
        "environment": _rows(comparison.environment),
        "outcome": {
            outcome.name: {"values": outcome.values, "changes": outcome.changes()} for outcome in comparison.outcomes
        },
        "weights": {"sha256": comparison.weights, "equal": comparison.same_weights},
        "data": {
            "fingerprints": comparison.data,
            "equal": comparison.same_data,
            "same_batches": comparison.same_batches,
        },
        "bits": None if comparison.bits is None else asdict(comparison.bits),
    }


def _rows(rows: Sequence[Difference] | None) -> dict[str, list[Any]] | None:
    if rows is None:
        return None
    return {row.key: [None if value is MISSING else value for value in row.values] for row in rows}


def _result(run: Overview, result: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Of a run that has not ended, what it has reached so far."""
    end = read_metrics_end(run.path / "metrics.jsonl")
    kind = "validation" if end.validation is not None or mapping(result, "best") else "training"
    if result is not None:
        return {**result, "metrics": _named(mapping(result, "metrics"), kind)}
    return {
        "steps": run.steps,
        "metrics": _named(measures(end.validation) or measures(end.train), kind),
        "samples_per_second": run.samples_per_second,
        "seconds": {"total": run.seconds},
    }


def _named(metrics: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Measures of training are not measures of validation, although they have the same names."""
    return {f"{kind} {name}": value for name, value in metrics.items()}


def _seconds(goodput: Mapping[str, Any], of_start: Mapping[str, Any]) -> float | None:
    """Through all restarts; of the last start where a result of an older version knows no more."""
    return number(mapping(goodput, "seconds"), "total") or number(of_start, "total")


def _outcomes(results: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    """Numbers that at least one run tells."""
    metrics = [mapping(result, "metrics") for result in results]
    best = [mapping(result, "best") for result in results]
    seconds = [mapping(result, "seconds") for result in results]
    goodput = [mapping(result, "goodput") for result in results]
    skipped = tuple(number(values, "skipped_updates") for values in goodput)
    names = dict.fromkeys(name for values in metrics for name in values)
    named = {text(values, "metric") for values in best} - {""}
    outcomes = [
        Outcome("steps", tuple(number(result, "steps") for result in results)),
        Outcome("samples seen", tuple(number(result, "samples_seen") for result in results)),
        *(Outcome(name, tuple(number(values, name) for values in metrics)) for name in names),
        *(
            Outcome(
                f"best {name}",
                tuple(number(values, "value") if text(values, "metric") == name else None for values in best),
            )
            for name in sorted(named)
        ),
        Outcome("samples/s", tuple(number(result, "samples_per_second") for result in results), is_speed=True),
        Outcome("seconds", tuple(map(_seconds, goodput, seconds)), is_speed=True),
        Outcome("restarts", tuple(_restarts(values) for values in goodput)),
        Outcome("share of time that counts", tuple(number(values, "share") for values in goodput)),
        *([Outcome("skipped updates", skipped)] if any(skipped) else []),
        Outcome("parameters", tuple(number(result, "parameters") for result in results)),
    ]
    return [outcome for outcome in outcomes if any(value is not None for value in outcome.values)]


def _restarts(goodput: Mapping[str, Any]) -> float | None:
    restarts = goodput.get("restarts")
    return float(len(restarts)) if isinstance(restarts, list) else None


def _data(run: Path) -> str:
    """The fingerprint of the data that its last start was trained on, as its audit has it; "" where it has none."""
    with suppress(*UNREADABLE):
        for raw in last_lines(run / "audit" / "ledger.jsonl"):
            line = json_object(raw) or {}
            if line.get("event") == "started":
                return text(line, "data")
    return ""


def _all_equal(texts: Sequence[str]) -> bool | None:
    return None if "" in texts else len(set(texts)) == 1
