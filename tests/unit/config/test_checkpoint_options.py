"""What the options of checkpoints and of the watchdog ask for, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from hvdtrain.config.checkpoint_options import seconds_between
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"checkpoint_every": "10min"}, (600.0, 86_400.0)),
        ({"checkpoint_every": "auto"}, (None, 86_400.0)),
        ({"checkpoint_every": "auto", "mtbf": "12h"}, (None, 43_200.0)),
    ],
)
def test_seconds_between(options: dict[str, Any], expected: object) -> None:
    assert seconds_between(TrainConfig(**options)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoint_every": "often"}, "--checkpoint-every is often."),
        ({"checkpoint_every": "auto", "mtbf": "0"}, "--mtbf is 0."),
        ({"watchdog": "10min"}, "--watchdog is 10min, and --stall-timeout 300 s."),
        ({"mtbf": "12h"}, "--mtbf 12h is given without --checkpoint-every auto."),
        ({"checkpoint_every": "60", "mtbf": "12h"}, "--mtbf 12h is given with --checkpoint-every 60."),
        (
            {"checkpoint_mode": "sync", "checkpoint_overlap": "skip"},
            "--checkpoint-overlap skip is given with --checkpoint-mode sync.",
        ),
        ({"checkpoint_overlap": "skip"}, "--checkpoint-overlap skip is given without --checkpoint-interval."),
        ({"check_weights_every": 10, "sync_every": 4}, "--check-weights-every is 10, and --sync-every 4."),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        TrainConfig(**options)
    assert caught.value.fact == words
