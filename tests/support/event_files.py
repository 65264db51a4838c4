"""What TensorBoard shows of a folder of event files, read by its rules: TFRecords, in the order of the files' names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import data_sharding as ds
from hvdtrain.run.sinks.tensorboard_logger import messages


def events_of(folder: Path) -> list[Any]:
    """All `Event` messages, the checksums verified."""
    found = []
    for file in sorted(folder.glob("*tfevents*")):
        catalog = ds.Catalog.index(file)
        with ds.RecordReader(catalog) as reader:
            found += [messages().Event.FromString(payload) for payload in reader.read(np.arange(len(catalog)))]
    return found


def shown_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag → (step, value). A start of a session takes away what comes before it and has no smaller step."""
    shown: dict[str, list[tuple[int, float]]] = {}
    for event in events_of(folder):
        if event.HasField("session_log") and event.session_log.status == messages().SessionLog.START:
            shown = {tag: [point for point in points if point[0] < event.step] for tag, points in shown.items()}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                shown.setdefault(value.tag, []).append((event.step, value.simple_value))
    return shown
