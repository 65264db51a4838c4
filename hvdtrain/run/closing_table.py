"""The closing table of a training, for people."""

from typing import Any, Final

from hvdtrain.engine.events import StoppedEarly
from hvdtrain.run.result import PARTS

_MOST_ROWS: Final = 4  # of stragglers
_BORDERS: Final = len("│  │  │")


def print_table(result: dict[str, Any], folder: str, report: str | None = None, columns: int = 100) -> None:
    """The closing table on standard output, at most `columns` wide; below it, paths that are too long for it.

    Args:
        folder, report: the paths of the run folder and of its report, or what makes one.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    seconds = result["seconds"]
    table = Table(show_header=False, title=f"{result['task']} in {result['framework']}: {result['status']}")
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in result["metrics"].items():
        table.add_row(f"validation {name}" if result["best"] else name, f"{value:.4f}")
    if best := result["best"]:
        told = f"step {best['step']}, of epoch {best['epoch'] + 1}: {best['metric']} {best['value']:.4f}"
        table.add_row("best checkpoint", told)
    if result["stopped_early"]:
        table.add_row("stopped early", StoppedEarly(**result["stopped_early"]).reason)
    table.add_row("workers", f"{result['world_size']}, global batch {result['global_batch_size']}")
    table.add_row("speed", f"{result['samples_per_second']:,.0f} samples/s")
    table.add_row("time", f"{seconds['total']:.1f} s, of which {seconds['start']:.1f} s to start")
    table.add_row("a step's time", _step_shares(seconds))
    for straggler in result.get("stragglers", [])[:_MOST_ROWS]:
        table.add_row("slow", _slow(straggler))
    if result.get("goodput", {}).get("restarts"):
        table.add_row("restarts", _restarts(result["goodput"]))
    table.add_row("parameters", f"{result['parameters']:,}")
    table.add_row("weights", f"equal on all workers ({result['weights']['sha256'][:12]})")
    paths = {"run folder": folder} | ({} if report is None else {"report": report})
    beside = max(len(str(name)) for name in [*table.columns[0].cells, *paths]) + _BORDERS
    below = {name: path for name, path in paths.items() if beside + cell_len(path) > columns}
    for name in (name for name in paths if name not in below):
        table.add_row(name, paths[name])
    # No colours: mpirun shows workers a terminal even where there is none.
    Console(width=columns, color_system=None).print(table)
    for name, path in below.items():
        print(f"{name}: {path}")  # which the terminal breaks, so that it can be copied


def _restarts(goodput: dict[str, Any]) -> str:
    lost, share = goodput["lost_steps"], goodput["share"]
    return f"{len(goodput['restarts'])}, {lost} steps were trained again; {share:.0%} of all time trained these weights"


def _step_shares(seconds: dict[str, Any]) -> str:
    total = sum(seconds[part] for part in PARTS[:3])
    if not total:
        return "no step was trained"
    inner = [f"{name} {seconds[name] / total:.0%}" for name in ("forward", "backward", "optimizer") if name in seconds]
    compute = f" ({', '.join(inner)})" if inner else ""
    shares = [f"{part} {seconds[part] / total:.0%}{compute if part == 'compute' else ''}" for part in PARTS[:3]]
    return ", ".join(shares)


def _slow(straggler: dict[str, Any]) -> str:
    host = f" on {straggler['host']}" if straggler["host"] else ""
    who = "the network" if straggler["rank"] is None else f"rank {straggler['rank']}{host}"
    by = f", slower by {straggler['slower_by']:.0%}" if straggler["slower_by"] else ""
    waited = f"others waited {straggler['share_of_time_others_waited']:.0%} of their time"
    return f"{who}: {straggler['cause']}{by}; {waited}"
