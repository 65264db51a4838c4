"""What a training step takes on W workers, for each way to divide it: formulas, with nothing measured in them.

docs/cost-model.md explains them and names their sources.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Exchange = Literal["ring", "hierarchical ring", "parameter server"]


@dataclass(frozen=True)
class LinkModel:
    """A link between two workers: a message of s bytes takes latency + s / bandwidth.

    Attributes:
        latency: seconds.
        bandwidth: bytes a second.
    """

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Where a job runs.

    Attributes:
        outer: links between hosts, for rings.
        inner: links within a host, for rings.
        passing: links between stages of one host, for activations; None: as `inner`.
        workers_per_host: W workers are on W / workers_per_host hosts.
        memory: bytes that a worker may use.
        hides: how much of the time of the backward pass communication may run beside it, 0 to 1: 1 where a device
            computes by itself, 0 where workers compute with the cores that also send.
        slowdown: by so much an exchange takes longer beside computing than by itself, where it is not hidden.
    """

    outer: LinkModel
    inner: LinkModel
    passing: LinkModel | None = None
    workers_per_host: int = 1
    memory: float = float("inf")
    hides: float = 0.0
    slowdown: float = 1.0

    def between(self, workers: int) -> LinkModel:
        """The slowest link of a ring of so many neighbouring workers."""
        return self.inner if workers <= self.workers_per_host else self.outer


@dataclass(frozen=True)
class Layers:
    """One link of the model's chain, or all of them together.

    Attributes:
        forward, backward: seconds of a record.
        weights: bytes of the weights that are trained.
        kept: bytes of activations of a record between the two passes.
        leaving: bytes of what a record passes on to the next stage.
    """

    forward: float
    backward: float
    weights: float
    kept: float = 0.0
    leaving: float = 0.0


@dataclass(frozen=True)
class Workload:
    """A model and its batch.

    Attributes:
        layers: in their order.
        batch: records of an update.
        fixed: seconds that a forward and a backward pass of the whole model take beside those for records.
        update: seconds of the optimizer for all weights.
        slots: bytes of the optimizer's state, for each byte of weights.
        bucket: bytes of the largest message of gradients.
        smallest: records that the model needs in each micro batch.
    """

    layers: Sequence[Layers]
    batch: float
    fixed: float
    update: float
    slots: float
    bucket: float = 25 * 2**20
    smallest: int = 1

    @property
    def whole(self) -> Layers:
        return joined(self.layers)


@dataclass(frozen=True)
class Layout:
    """A way to divide a step.

    Attributes:
        replicas: of the model.
        stages: of each replica; 1: a worker has a whole model.
        micro_batches: of each replica's batch, if there are stages.
        exchange: how gradients are averaged over replicas.
        servers: of a parameter server, beside the workers.
        shard: "none", "optimizer" or "gradients", as --shard.
        cuts: the first of the layers of each stage but the first one.
    """

    replicas: int
    stages: int = 1
    micro_batches: int = 1
    exchange: Exchange = "ring"
    servers: int = 0
    shard: Literal["none", "optimizer", "gradients"] = "none"
    cuts: tuple[int, ...] = ()

    @property
    def workers(self) -> int:
        return self.replicas * self.stages


@dataclass(frozen=True)
class Prediction:
    """Of one step.

    Attributes:
        seconds: of the step.
        compute: of these, forward, backward and update of the slowest worker.
        exchange: waiting for gradients and weights of other replicas.
        idle: waiting for other stages, their messages included.
        memory: bytes of a worker at most.
    """

    seconds: float
    compute: float
    exchange: float
    idle: float
    memory: float


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
        (2 + work.slots) * stage.weights + min(layout.micro_batches, layout.stages - number) * records * stage.kept
        for number, stage in enumerate(stages)
    )
    return Prediction(total, compute, max(sent), max(0.0, total - compute - max(sent)), memory)
