"""What a plan leaves: its numbers, its picture, and a config that trains in the recommended way.

Pictures and results of other measurements are made and written in the same way.
"""

import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.errors import UsageError
from hvdtrain.files import write_atomically, write_json
from hvdtrain.history.reading import UNREADABLE, json_object, open_bounded, read_bounded
from hvdtrain.plan.check_predictions import config_of
from hvdtrain.plan.predicted_plan import Plan
from hvdtrain.task.task import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEAD: Final = re.compile(rb"# .+, on \d+ workers?: hvdtrain ")  # of plan.yaml
_LONGEST_HEAD: Final = 2**16
_LARGEST_PLAN: Final = 2**28
_LINES: Final = ("ring", "ZeRO-1", "ZeRO-2", "hierarchical ring", "pipeline", "naive split", "parameter server")
_STYLES: Final = ("o-", "s-", "^-", "D-", "v--", "x--", "+:")


def require_folder(folder: Path, config: str | None = None) -> None:
    """Make the folder for a plan. `config`: the file that was given as --config. Raises `UsageError` where that cannot
    be, where it cannot be written, or where a file there, which a plan would replace, is no earlier plan's."""
    try:
        _require_replaceable(folder, config)
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable_results(folder, error) from error


def _require_replaceable(folder: Path, config: str | None) -> None:
    wanted, numbers, picture = (folder / f"plan.{suffix}" for suffix in ("yaml", "json", "svg"))
    if config is not None and wanted.exists() and Path(config).exists() and wanted.samefile(config):
        raise UsageError(
            f"--config is {config}, and the plan would be written into {folder}.",
            "The recommended config would replace it.",
            "choose another folder with --out, or copy the config to another name.",
        )
    for path, is_ours in (
        (wanted, _is_plan_config),
        (numbers, _is_plan),
        (picture, lambda _: numbers.exists()),  # they are written together
    ):
        if path.exists() and not is_ours(path):
            raise UsageError(
                f"{path} was not written by `hvdtrain plan`.",
                "This plan would replace it.",
                "choose another folder with --out.",
            )


def _is_plan_config(path: Path) -> bool:
    try:
        with open_bounded(path) as file:
            return _HEAD.match(file.readline(_LONGEST_HEAD)) is not None
    except UNREADABLE:
        return False


def _is_plan(path: Path) -> bool:
    try:
        content = json_object(read_bounded(path, _LARGEST_PLAN))
    except UNREADABLE:
        return False
    return content is not None and {"workload", "cluster", "ways"} <= content.keys()


def write_plan(plan: Plan, config: TrainConfig, kind: type[Task], workers: int, folder: Path) -> list[str]:
    """Write plan.json, plan.svg and, if a way is recommended, plan.yaml.

    Returns lines for people, of which the last one is the command that trains so, if there is one.

    Args: `workers`: of this job, for which the config is, if the plan has that number; else for its smallest one.

    Raises UsageError: the folder cannot be written.
    """
    written = write_results(folder, "plan", plan.to_json(), _drawn(plan, f"{config.task} in {kind.framework}"))
    best = plan.recommended.get(workers) or next(filter(None, plan.recommended.values()), None)
    path = folder / "plan.yaml"
    if best is None:
        path.unlink(missing_ok=True)  # an earlier plan's, which would train what does not fit
        return [written]
    count = best.layout.workers
    start = f"hvdtrain launch local -np {count} -- train --config {path}" if count > 1 else f"hvdtrain --config {path}"
    head = f"# {best.name}, on {_workers(count)}: {start}\n"
    try:
        write_atomically(path, (head + dump_config(config_of(best.layout, config))).encode())
    except OSError as error:
        raise unwritable_results(folder, error) from error
    options = " ".join(best.options or ())
    return [
        f"recommended for {_workers(count)}: {best.name}{', ' * bool(options)}{options}",
        f"wrote plan.json, plan.svg and plan.yaml into {folder}; to train so:",
        start,
    ]


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"


def _drawn(plan: Plan, title: str) -> bytes:
    """An SVG: how fast each machine trains, for each number of workers, one line for each way to train.

    Machines that only serve parameters count too.
    """
    alone = _alone(plan)

    def draw(figure: Any, axes: Any) -> None:
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xscale("log", base=2)
        for name, style in zip(_LINES, _STYLES, strict=True):
            _line(axes, plan, name, style, alone)
        axes.set_ylim(0, None)
        axes.set_xlabel("workers")
        axes.set_ylabel("speed of a machine, of one without communication")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if axes.get_legend_handles_labels()[0]:  # one worker alone has nothing to divide
            figure.legend(loc="outside right upper", frameon=False, fontsize=8)

    return drawn_svg(8, 4, draw)


def _line(axes: "Axes", plan: Plan, name: str, style: str, alone: float) -> None:
    """The best way of this kind for each number of workers; large open marks where it does not fit."""
    points = {}
    for workers, ways in plan.ways.items():
        if same_kind := [way for way in ways if way.name.startswith(name)]:
            best = min(same_kind, key=lambda way: way.cost)
            points[workers] = best.fits, 1 / (best.cost * alone)
    if points:
        (line,) = axes.plot(list(points), [speed for _, speed in points.values()], style, lw=1.2, ms=4, label=name)
        missing = {workers: speed for workers, (fits, speed) in points.items() if not fits}
        axes.plot(list(missing), list(missing.values()), style[0], color=line.get_color(), mfc="none", ms=9)


def _alone(plan: Plan) -> float:
    """Records a second of one worker that has nobody to wait for, with the batch of the smallest number of workers."""
    work, workers = plan.work, min(plan.ways)
    whole, records = work.whole, plan.ways[workers][0].records * plan.ways[workers][0].prediction.seconds / workers
    return records / (work.fixed + records * (whole.forward + whole.backward) + work.update)


def drawn_svg(width: float, height: float, *draws: Callable[[Any, Any], None]) -> bytes:
    """An SVG whose text is text, and the same bytes for the same numbers. Several axes have one vertical scale.

    Args:
        width, height: in inches.
        draws: for axes side by side; each receives the figure and its axes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hvdtrain"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        panels: Any = figure.subplots(1, len(draws), sharey=True, squeeze=False)
        for draw, axes in zip(draws, panels[0], strict=True):
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            draw(figure, axes)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def write_results(folder: Path, name: str, content: Mapping[str, Any], picture: bytes) -> str:
    """Write NAME.json and NAME.svg; returns a line for people. Raises `UsageError` where the folder cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", dict(content))
        write_atomically(folder / f"{name}.svg", picture)
    except OSError as error:
        raise unwritable_results(folder, error) from error
    return f"wrote {name}.json and {name}.svg into {folder}"


def unwritable_results(folder: Path, error: OSError) -> UsageError:
    """What to say where results cannot be written."""
    return UsageError(
        f"The folder {folder} cannot be written: {error.strerror or error}.",
        "The results would be lost.",
        "choose another one with --out.",
    )
