"""What a sink is, and what it receives when it is opened."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.events import Callback
from hvdtrain.engine.source import Source
from hvdtrain.named_arrays import State
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.topology import Topology


@dataclass(frozen=True)
class SinkContext:
    """The run whose events a sink receives: its options, its folder, and which of its ranks this is."""

    config: TrainConfig
    folder: RunFolder
    topology: Topology
    begun: float = field(default_factory=time.time)  # when this process began its work, of `time.time()`
    state: Callable[[], State] = dict  # returns a copy of what training changes, as `Adapter.state`. Not collective.
    train: Source | None = None  # the records of training


OpenSink = Callable[[SinkContext, ExitStack], Callback | None]
"""Returns the callback that receives the run's events on this rank, or None where the sink has nothing to do.

Called on every rank. What must be closed at the end of the run, a failed one too, goes onto the stack.
"""
