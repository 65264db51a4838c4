"""What must hold before a model is divided into stages, and how many micro batches there are."""

from hvdtrain.algorithms.pipeline_schedule import usual_micro_batches
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology


def require_stages(config: TrainConfig, task_class: type[Task], topology: Topology) -> None:
    """Raise `UsageError` where this job cannot train a model in stages."""
    parallel = config.parallel
    if parallel.stages == 1:
        return
    option = f"--parallel.stages is {parallel.stages}"
    if parallel.is_pipeline and topology.size % parallel.stages:
        raise _not_divisible(option, topology.size, parallel.stages)
    if task_class.framework != "torch":
        raise UsageError(
            f"{option}, and the task {config.task} is written for {task_class.framework}.",
            "torch models can be divided into stages.",
            "give --framework torch, or leave --parallel.stages out; --shard divides the optimizer's state in both.",
        )
    if config.data.mode == "pipe":
        raise UsageError(
            f"{option}, and --data.mode pipe is given.",
            "All stages of a replica read the same records, and a pipe can be read once.",
            "use --data.mode file.",
        )
    if parallel.devices and topology.local_size > 1 and any(name != "cpu" for name in parallel.device_names):
        raise UsageError(
            f"--parallel.devices {parallel.devices} is given to {topology.local_size} workers of one machine.",
            "They would all use the same devices.",
            "start one worker on each machine, or leave --parallel.devices out: then each worker has one stage.",
        )


def _not_divisible(option: str, size: int, stages: int) -> UsageError:
    if size == 1:
        return UsageError(
            f"{option}, and there is one worker.",
            "Each worker trains one stage.",
            f"start {stages} workers (horovodrun -np {stages}), or give this one the devices of all stages, as "
            f"--parallel.devices {','.join(['cpu'] * stages)}.",
        )
    fitting = [count for count in range(2, size + 1) if size % count == 0]
    return UsageError(
        f"{option}, and there are {size} workers.",
        f"Replicas of {stages} workers each cannot be formed of them.",
        f"start a multiple of {stages} workers, or give --parallel.stages {' or '.join(map(str, fitting))}.",
    )


def micro_batch_count(parallel: ParallelOptions, records: int) -> int:
    """Parts into which a replica's batch is cut; 1 where the model is not in stages. `records`: of a replica in each
    full step, or fewer if a model needs several in each part."""
    if parallel.stages == 1:
        return 1
    if isinstance(parallel.micro_batches, int):
        return parallel.micro_batches
    return usual_micro_batches(parallel.stages, records)
