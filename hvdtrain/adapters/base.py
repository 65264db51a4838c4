"""What the adapters of both frameworks have in common: they save and load the state of their parts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import PassChecks
from hvdtrain.adapters.gathered_state import Arrays, ShardedState, StageState
from hvdtrain.adapters.step_timer import SpanSink
from hvdtrain.adapters.sync_state import SyncState
from hvdtrain.adapters.worker_states import AlternatingStates, means_in
from hvdtrain.algorithms.ema import NoAverage, WeightAverage
from hvdtrain.algorithms.loss_scale import ScaledUpdate
from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.named_arrays import NO_STATE, State, weights_of


class AdapterState(ABC):
    """The half of an `Adapter` that knows no framework; the other half sets these attributes."""

    compiles_buckets = False
    model: Any
    optimizer: Any
    _arrays: Arrays
    _sharded: ShardedState | None = None
    _stage: StageState | None = None
    _options: TrainingOptions
    _average: WeightAverage | NoAverage
    _update: ScaledUpdate
    _gradient_sync: SyncState
    worker_states: AlternatingStates[Any] | None = None
    pass_checks: PassChecks | None = None

    @abstractmethod
    def _syncing(self) -> AbstractContextManager[None]:
        """Mark a block that waits for other ranks."""

    @abstractmethod
    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        """See `Adapter`."""

    def begin_epoch(self) -> None:  # noqa: B027
        """See `Adapter`; nothing is to be done where each call of the model says whether it trains."""

    def train_steps(self, batches: Sequence[LoadedBatch], step: int, lrs: Sequence[float]) -> None:
        for number, (batch, lr) in enumerate(zip(batches, lrs, strict=True), step):
            self.train_step(batch, number, lr)

    def buckets(self, cap: int) -> tuple[int, ...]:
        # Stages have different gradients, so that ranks could not choose together.
        return self._gradient_sync.buckets(cap) if self._stage is None else ()

    def set_bucket_cap(self, cap: int) -> None:
        self._gradient_sync.set_bucket_cap(cap)

    @property
    def threads(self) -> int:
        return 0

    def set_threads(self, count: int) -> None:  # noqa: B027
        """Nothing may be changed."""

    def tell_parts(self, tell: SpanSink | None) -> None:  # noqa: B027
        """See `Adapter`; here no part is reported."""

    @property
    def stage(self) -> int | None:
        return None if self._stage is None else self._stage.stage

    @property
    def counts(self) -> bool:
        return self._stage is None or self._stage.counts

    def evaluating(self) -> AbstractContextManager[None]:
        return self._average.swapped()

    @property
    def _state_arrays(self) -> Arrays:
        return self._sharded or self._arrays

    def gather_state(self, comm: Communicator, keeps: bool) -> bool:
        if self._sharded is not None:
            self._sharded.gather(comm, self.model, self.optimizer, keeps)
        if self._stage is not None:
            self._stage.gather(comm, self.view_state(), keeps)
        if self.worker_states is not None:
            self.worker_states.gather(comm, keeps)
        return self._sharded is not None or self._stage is not None

    def state(self, earlier: Mapping[str, NDArray[Any]] = NO_STATE) -> State:
        gathered = None if self._stage is None else self._stage.take()
        if gathered is not None:
            return gathered
        carried = self._average.state(earlier) | self._update.state() | self._gradient_sync.state()
        if self.worker_states is not None:
            carried |= self.worker_states.take()
        return self._state_arrays.read_state(self.model, self.optimizer, earlier) | carried

    def view_state(self) -> State:
        carried = self._average.state() | self._update.state() | self._gradient_sync.state()
        return self._state_arrays.view_state(self.model, self.optimizer) | carried

    def view_weights(self) -> State:
        return self._state_arrays.view_weights(self.model, self.optimizer)

    def load_state(self, state: State) -> None:
        if self._stage is not None:
            state = self._stage.own_of(state)
        self._state_arrays.load_state(self.model, self.optimizer, state)
        self._average.load_state(state)
        self._update.load_state(state)
        self._gradient_sync.load_state(state)
        if self.worker_states is not None:
            self.worker_states.load(state)
        if means := means_in(state):
            self._state_arrays.load_rank_local_state(self.model, means)

    def rank_local_state(self) -> State:
        with self._syncing():
            self._gradient_sync.average_weights()
        averages = self._average.state() if self._options.sync_every else {}  # each rank's, of its own weights
        buffers = self._state_arrays.drifting_buffers(self.model)
        if self._stage is not None:
            buffers = self._stage.spread(buffers)
        return buffers | self._gradient_sync.rank_local_state() | averages

    def load_rank_local_state(self, buffers: State) -> None:
        self._state_arrays.load_rank_local_state(self.model, buffers)
        if set(buffers) == set(weights_of(buffers)):
            return  # the model's own alone
        self._gradient_sync.load_rank_local_state(buffers)
        if self._options.sync_every:
            self._average.load_state(buffers)
