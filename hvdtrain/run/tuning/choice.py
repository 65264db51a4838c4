"""In which buckets a run exchanges its gradients: as its checkpoint, the cache or a measurement says.

With three or more ranks the buckets decide in which order numbers are added. So a resumed run keeps its choice, and
--deterministic chooses nothing.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from hvdtrain.adapters.gradient_sync import BUCKET_BYTES
from hvdtrain.adapters.interface import TunableAdapter
from hvdtrain.algorithms.tuning import MOST_SECONDS, SHORTEST_RUN, fastest
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import agree, broadcast_json
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.run.bench_step import fixed_batch
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.tuning.cache import open_cache
from hvdtrain.run.tuning.measure import StepTimer, Times

_log = logging.getLogger("hvdtrain.tuning")

_MIB: Final = 2**20
_CAPS: Final = (BUCKET_BYTES, *(mib * _MIB for mib in (1, 4, 100)))
"""The default, then the most promising first."""

_NOT_TUNED: Final = (
    "not tuned: Horovod reads its cycle time and hierarchical allreduce (which needs NCCL) when it starts; "
    "threads and binding are the launcher's"
)

Tuned = dict[str, Any]
"""As checkpoints and result.json hold it: "bucket_cap_mb", and "from": checkpoint, cache or measurement."""


def tune(
    setup: RunSetup,
    adapter: TunableAdapter,
    comm: Communicator,
    step: int,
    written: Mapping[str, Any],
    most_seconds: float = MOST_SECONDS,
) -> Tuned | None:
    """Choose the buckets, tell the adapter and the user; None where the usual ones are not questioned. Collective.

    Args:
        adapter: after its start, before its first step; it keeps its state.
        step: how many updates the model has seen.
        written: on rank 0 what the checkpoint says that is resumed from, else empty.
        most_seconds: that a measurement may take.
    """
    caps = distinct(adapter) if may_be_tuned(setup.config, comm) else []
    if len(caps) < 2:
        return None
    state, is_root = adapter.state(), comm.topology.is_root
    cache = open_cache(setup, state, comm)
    known = _kept(written, comm.topology.size) or _tuned(cache.read(), "cache") if is_root else None
    tuned = broadcast_json(comm, known, "hvdtrain.tuning.known")
    times: Times = {}
    if tuned is None and (remaining := _steps_left(setup, step)) >= SHORTEST_RUN:
        batch = agree(comm, lambda: fixed_batch(setup), "hvdtrain.tuning.batch")
        times = StepTimer(adapter, batch, comm, step).look_at(caps, remaining, most_seconds)
        tuned = _tuned(fastest(BUCKET_BYTES, times), "measurement") if times else None
        adapter.load_state(state)
    if tuned is None:
        return None
    cap = int(tuned["bucket_cap_mb"] * _MIB)
    adapter.set_bucket_cap(cap)
    if is_root:
        if times:
            cache.write(cap, {f"{at / _MIB:g} MiB": [1e3 * one for one in looks] for at, looks in times.items()})
        print(f"hvdtrain: {described(tuned, times)}", flush=True)
    _log.info("%s", described(tuned, times))
    return tuned


def may_be_tuned(config: TrainConfig, comm: Communicator) -> bool:
    """Whether the options leave the buckets of summed gradients to us. The same on all ranks."""
    return (
        comm.topology.is_distributed
        and config.tune == "auto"
        and config.bucket_cap_mb is None
        and not config.deterministic
        and config.data.mode == "file"
        and config.reduce_op != "adasum"
        and config.compression != "powersgd"
    )


def distinct(adapter: TunableAdapter) -> list[int]:
    """Sizes that cut this model's gradients differently, the default first; none where the adapter has no buckets."""
    by_cut = {adapter.buckets(cap): cap for cap in reversed(_CAPS)}
    return [] if () in by_cut else sorted(by_cut.values(), key=_CAPS.index)


def described(tuned: Tuned, times: Times) -> str:
    """One line for people."""
    chosen = f"gradients are exchanged in buckets of up to {tuned['bucket_cap_mb']:g} MiB"
    if not times:
        return f"{chosen}, as the {tuned['from']} says (--bucket-cap-mb or --tune never change that)"
    looks = ", ".join(
        f"{cap / _MIB:g} MiB {' and '.join(f'{1e3 * one:.3g}' for one in both)} ms" for cap, both in times.items()
    )
    return f"{chosen}, since a step took with {looks}; {_NOT_TUNED}"


def _kept(written: Mapping[str, Any], size: int) -> Tuned | None:
    tuned = written.get("tuned")
    if tuned is None or written.get("world_size") != size:
        return None
    return {**tuned, "from": "checkpoint"}


def _tuned(cap: int | None, source: str) -> Tuned | None:
    return None if cap is None else {"bucket_cap_mb": cap / _MIB, "from": source}


def _steps_left(setup: RunSetup, step: int) -> int:
    total = setup.epochs * setup.train.plan(0).steps
    return min(total, setup.config.max_steps or total) - step
