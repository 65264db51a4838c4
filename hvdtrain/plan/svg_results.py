"""What the pictures of measurements and plans have in common; and how results are left in a folder."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.files import write_atomically, write_json


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
