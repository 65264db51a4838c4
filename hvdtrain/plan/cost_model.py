"""What a training step takes on W workers, for each way to divide it: formulas, with nothing measured in them.

docs/cost-model.md explains them and names their sources.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hvdtrain.algorithms.pipeline_schedule import micro_batches_in_flight

Exchange = Literal["ring", "hierarchical ring", "parameter server"]


@dataclass(frozen=True)
class LinkModel:
    """A link between two workers: a message of s bytes takes latency + s / bandwidth."""

    latency: float  # seconds
    bandwidth: float  # bytes a second

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Where a job runs."""

    outer: LinkModel  # links between hosts, for rings
    inner: LinkModel  # links within a host, for rings
    passing: LinkModel | None = None  # links between stages of one host, for activations; None: as `inner`
    workers_per_host: int = 1  # W workers are on W / workers_per_host hosts
    memory: float = float("inf")  # bytes that a worker may use
    # how much of the time of the backward pass communication may run beside it, 0 to 1: 1 where a device computes by
    # itself, 0 where workers compute with the cores that also send
    hides: float = 0.0
    slowdown: float = 1.0  # by so much an exchange takes longer beside computing than by itself, where it is not hidden

    def between(self, workers: int) -> LinkModel:
        """The slowest link of a ring of so many neighbouring workers."""
        return self.inner if workers <= self.workers_per_host else self.outer


@dataclass(frozen=True)
class Layers:
    """One link of the model's chain, or all of them together."""

    forward: float  # seconds of a record
    backward: float  # seconds of a record
    weights: float  # bytes of the weights that are trained
    kept: float = 0.0  # bytes of activations of a record between the two passes
    leaving: float = 0.0  # bytes of what a record passes on to the next stage


@dataclass(frozen=True)
class Workload:
    """A model and its batch."""

    layers: Sequence[Layers]  # in their order
    batch: float  # records of an update
    fixed: float  # seconds that a forward and a backward pass of the whole model take beside those for records
    update: float  # seconds of the optimizer for all weights
    slots: float  # bytes of the optimizer's state, for each byte of weights
    bucket: float = 25 * 2**20  # bytes of the largest message of gradients
    smallest: int = 1  # records that the model needs in each micro batch

    @property
    def whole(self) -> Layers:
        return joined(self.layers)


@dataclass(frozen=True)
class Layout:
    """A way to divide a step."""

    replicas: int  # of the model
    stages: int = 1  # of each replica; 1: a worker has a whole model
    micro_batches: int = 1  # of each replica's batch, if there are stages
    exchange: Exchange = "ring"  # how gradients are averaged over replicas
    servers: int = 0  # of a parameter server, beside the workers
    shard: Literal["none", "optimizer", "gradients"] = "none"  # as --shard
    cuts: tuple[int, ...] = ()  # the first of the layers of each stage but the first one

    @property
    def workers(self) -> int:
        return self.replicas * self.stages


@dataclass(frozen=True)
class Prediction:
    seconds: float  # of the step
    compute: float  # of these, forward, backward and update of the slowest worker
    exchange: float  # waiting for gradients and weights of other replicas
    idle: float  # waiting for other stages, their messages included
    memory: float  # bytes of a worker at most


def joined(layers: Sequence[Layers]) -> Layers:
    """Several as one; what leaves is what the last one passes on."""
    return Layers(
        forward=sum(layer.forward for layer in layers),
        backward=sum(layer.backward for layer in layers),
        weights=sum(layer.weights for layer in layers),
        kept=sum(layer.kept for layer in layers),
        leaving=layers[-1].leaving,
    )


def ring_seconds(nbytes: float, workers: int, link: LinkModel) -> float:
    """An allreduce: 2 (W - 1) messages of 1/W of the bytes, one after the other (Patarasuk and Yuan 2009)."""
    return 2 * (workers - 1) * link.seconds(nbytes / workers)


def hierarchical_seconds(nbytes: float, workers: int, cluster: Cluster) -> float:
    """A reducescatter and an allgather within each host, and rings of the workers with the same part between hosts."""
    local = min(workers, cluster.workers_per_host)
    hosts = -(-workers // local)
    return ring_seconds(nbytes, local, cluster.inner) + ring_seconds(nbytes / local, hosts, cluster.outer)


def server_seconds(nbytes: float, workers: int, servers: int, link: LinkModel) -> float:
    """All workers send their gradients to the servers, each of which has a part, and get weights back.

    A server's link carries the messages of all workers, so that it is the bottleneck: 2 (latency + W/K · bytes / B).
    """
    return 2 * link.seconds(nbytes * workers / servers)


def exchange_seconds(nbytes: float, layout: Layout, cluster: Cluster, bucket: float) -> float:
    """Averaging gradients over replicas, in messages of `bucket` bytes at most."""
    if layout.replicas == 1:
        return 0.0
    messages = max(1, math.ceil(nbytes / bucket))
    part = nbytes / messages * cluster.slowdown  # as if there were more bytes
    ranks_apart = layout.replicas * layout.stages  # replicas of a stage are that many ranks from end to end
    if layout.exchange == "parameter server":
        return messages * server_seconds(part, layout.replicas, layout.servers, cluster.between(ranks_apart))
    if layout.exchange == "hierarchical ring":
        return messages * hierarchical_seconds(part, layout.replicas, cluster)
    return messages * ring_seconds(part, layout.replicas, cluster.between(ranks_apart))


def predicted(layout: Layout, work: Workload, cluster: Cluster) -> Prediction:
    """One step of the workload."""
    return _whole(layout, work, cluster) if layout.stages == 1 else _staged(layout, work, cluster)


def _whole(layout: Layout, work: Workload, cluster: Cluster) -> Prediction:
    model, records = work.whole, work.batch / layout.replicas
    forward, backward = model.forward * records, model.backward * records
    is_sharded = layout.shard != "none"
    update = work.update / layout.replicas if is_sharded else work.update
    compute = work.fixed + forward + backward + update
    sent = exchange_seconds(model.weights, layout, cluster, work.bucket)
    # Sharded, gradients are sent in the backward pass (half of an allreduce) and weights after the update (the rest).
    hidable = sent / 2 if is_sharded else sent
    hidden = min(hidable, cluster.hides * backward)
    parts = layout.replicas if is_sharded else 1
    gradients = model.weights / (layout.replicas if layout.shard == "gradients" else 1)
    memory = model.weights + gradients + work.slots * model.weights / parts + model.kept * records
    return Prediction(compute + sent - hidden, compute, sent - hidden, 0.0, memory)


def _staged(layout: Layout, work: Workload, cluster: Cluster) -> Prediction:
    """(M + S - 1) times the slowest stage (Huang et al. 2019), and 2 (S - 1) messages that nothing hides."""
    ends = [0, *layout.cuts, len(work.layers)]
    stages = [joined(work.layers[first:end]) for first, end in zip(ends, ends[1:], strict=False)]
    records = work.batch / layout.replicas / layout.micro_batches
    whole = work.whole.weights
    passes = [work.fixed / len(stages) + records * (stage.forward + stage.backward) for stage in stages]
    is_local = layout.stages <= cluster.workers_per_host
    link = (cluster.passing or cluster.inner) if is_local else cluster.outer
    message = max(link.seconds(records * stage.leaving) for stage in stages[:-1])
    updates = [work.update * stage.weights / whole for stage in stages]
    sent = [exchange_seconds(stage.weights, layout, cluster, work.bucket) for stage in stages]
    slowest = max(passes)
    compute = max(layout.micro_batches * seconds + update for seconds, update in zip(passes, updates, strict=True))
    # The slowest stage goes on without a pause, once the stages before it have filled it and before those after drain.
    filling = sum(passes) - slowest + 2 * (layout.stages - 1) * message
    total = layout.micro_batches * slowest + filling + max(map(sum, zip(updates, sent, strict=True)))
    memory = max(
        (2 + work.slots) * stage.weights
        + micro_batches_in_flight("1f1b", layout.stages, layout.micro_batches, number) * records * stage.kept
        for number, stage in enumerate(stages)
    )
    return Prediction(total, compute, max(sent), max(0.0, total - compute - max(sent)), memory)
