"""Which options exclude each other and which need another one: a table, from which the refusals are made.

To add a row: the conditions, why, and a HINT that says which option to drop (default: one of them). A condition is the
name of an option, which means that it does not have its default; or name=value, with | between several values; or
name!=value. Of several conditions, each one counts by itself. The first row that applies is the refusal.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hvdtrain.algorithms.update_rules import OPTIMIZERS, Optimizer, optimizer_named
from hvdtrain.errors import UsageError

_TABLE: Final = """
watchdog_action=end excludes watchdog=never
    Nothing would end the job.
    HINT: leave out --watchdog never, or give a time.
batch_size excludes global_batch_size
    One follows from the other and the number of workers.
    HINT: give --global-batch-size, which means the same training at every number of workers.
init_weights excludes resume!=auto|never
    Each says which weights to start from.
    HINT: give --resume to continue a training, or --init-weights to begin a new one.
init_weights_exclude needs init_weights
    All weights are fresh then.
    HINT: give the file or run to start from as --init-weights PATH.
lr_scaling needs reference_batch_size
    Scaling multiplies lr by (global batch / reference batch), and the second number is unknown.
    HINT: give the global batch size for which --lr was tuned, e.g. --reference-batch-size 256.
lr_power needs lr_schedule=polynomial
lr_min needs lr_schedule=cosine|linear|polynomial
lr_milestones lr_gamma needs lr_schedule=step
trace excludes steps_per_call
    Several updates of one call are one operation, so that a trace would not show single ones.
    HINT: leave out --steps-per-call while you look at a trace.
data.validation excludes data.validation_split data.folds
    Each says which records to validate on.
data.validation_split excludes data.folds
    Each says which records to validate on.
data.folds needs data.fold
    Each fold is a training of its own.
    HINT: say which one this is, from --data.fold 0 on.
data.fold needs data.folds
    It is one of several.
    HINT: say of how many, e.g. --data.folds 5.
data.cache_limit needs data.cache_dir
    No copies of the data are kept then.
    HINT: say where to keep them, e.g. --data.cache-dir /scratch/cache.
data.subset data.validation_split data.folds excludes data.mode=pipe
    Which records come through a pipe is decided before the training.
    HINT: divide the files instead.
best_mode needs best_metric
    Of the loss, which is compared then, the smallest is the best.
    HINT: name the metric, e.g. --best-metric accuracy.
early_stopping_min_delta!=0 needs early_stopping_patience
    It would change nothing.
    HINT: say how many validations to wait, e.g. --early-stopping-patience 3.
mtbf needs checkpoint_every=auto
    It would change nothing.
    HINT: let the time between checkpoints follow from it with --checkpoint-every auto.
checkpoint_overlap=skip excludes checkpoint_mode=sync
    No checkpoint overlaps another one then.
checkpoint_overlap=skip needs checkpoint_interval
    Only checkpoints of that interval are skipped, and there are none.
    HINT: give the interval as --checkpoint-interval 1000, or leave the other one out.
nesterov excludes momentum=0
    There is no momentum to look ahead by.
compression excludes reduce_op=adasum
    Adasum weighs gradients by their scalar products, which are not those of the compressed ones.
compression=powersgd excludes precision=fp16
    A step whose scaled gradients overflow would spoil the error that powersgd carries on.
    HINT: use --precision bf16, which needs no scaling.
powersgd_rank needs compression=powersgd
    It would change nothing.
    HINT: give --compression powersgd, or leave it out.
sparse_gradients excludes compression reduce_op sync_every
    Rows are gathered as they are, and added up.
    HINT: leave --sparse-gradients out, which makes them dense.
steps_per_call excludes accumulate_steps sync_every precision=fp16
    That has something to do in Python between two steps.
    HINT: leave --steps-per-call out.
data_parallel excludes sync_every compression sync_batch_norm
    That is for several workers, and DataParallel is one process on several GPUs.
    HINT: leave --data-parallel out, and start one worker per GPU.
gradient_sync excludes compression sync_every sparse_gradients reduce_op=adasum
    It sums gradients as they are, for comparison.
    HINT: leave --gradient-sync out.
bucket_cap_mb excludes gradient_sync
    There are no buckets.
bucket_cap_mb excludes sync_every sparse_gradients
    Gradients are not all summed in buckets at each update then.
compression excludes sync_every
    Local SGD sends weights, which are not to be rounded.
reduce_op excludes sync_every
    Local SGD averages weights, and no gradients.
precision=fp16 excludes sync_every
    Each worker would decide by its own gradients whether an update is skipped, and scale them differently.
    HINT: use --precision bf16, which needs no scaling.
sync_batch_norm excludes sync_every
    Workers would wait for each other in every layer, which local SGD is to avoid.
process_sets needs sync_every
    The sets would train different models for ever.
    HINT: say after how many updates the weights of all are averaged, e.g. --sync-every 8.
shard excludes compression reduce_op=adasum sync_every gradient_sync sparse_gradients
    Each worker gets its part of the summed gradients by a reducescatter, which the other option replaces.
virtual_workers excludes batch_size
    The global batch must be the same for every number of workers.
    HINT: give --global-batch-size.
virtual_workers excludes accumulate_steps
    The micro batches are those of the virtual workers.
    HINT: leave --accumulate-steps out, or give more virtual workers.
virtual_workers excludes reduce_op sync_every compression=powersgd gradient_sync sparse_gradients
    Its result depends on which worker has which records.
    HINT: leave the other option out.
virtual_workers excludes shard
    Gradients are summed in one order on all workers, and each worker needs all sums.
virtual_workers excludes sync_batch_norm
    Virtual workers of one worker are computed one after the other, and cannot share statistics.
    HINT: leave --sync-batch-norm out; each virtual worker has statistics of its own.
virtual_workers excludes compile steps_per_call data_parallel
    It computes several batches at once, or chooses kernels by measuring them.
    HINT: leave the other option out.
virtual_workers excludes parallel.stages parallel.choose
    It divides the model instead of the batch.
virtual_workers excludes data.mode=pipe
    Which worker gets which records is decided by what feeds the pipes.
    HINT: read the data from files.
check_workers needs virtual_workers
    What a worker computes can be repeated by another one only where it does not depend on the worker.
    HINT: give --virtual-workers too, or leave --check-workers out.
hash_every excludes sync_every
    Each worker has weights of its own between two averages.
hash_every excludes parallel.stages
    No worker has all weights.
parallel.choose excludes parallel.devices
    It chooses what each of several workers trains, on a device of its own.
    HINT: leave one of them out, or give --parallel.stages instead of auto.
parallel.choose excludes parallel.stages shard
    It chooses that too.
parallel.devices parallel.micro_batches parallel.schedule parallel.cuts parallel.transport needs parallel.stages
    The model is not divided, so that it would change nothing.
    HINT: give a number of stages, as --parallel.stages 2, or leave it out.
parallel.stages excludes accumulate_steps
    A stage has a part of the layers and of each update only, and that option needs a whole model.
    HINT: leave one of them out; --parallel.micro-batches cuts a worker's batch in the same way.
parallel.stages excludes shard
    A stage has a part of the layers and of each update only, and that option needs a whole model.
    HINT: leave one of them out; stages divide the optimizer's state already.
parallel.stages excludes compile data_parallel sync_batch_norm steps_per_call
    A stage has a part of the layers and of each update only, and that option needs a whole model.
parallel.stages excludes sync_every sparse_gradients gradient_sync reduce_op=adasum compression=bf16|powersgd
    A stage has a part of the layers and of each update only, and that option needs a whole model.
"""

SETTINGS_OF_OPTIMIZERS: Final = frozenset(
    ["decay_norm_and_bias", *(option for optimizer in OPTIMIZERS.values() for option in optimizer.usual)]
)
"""Options that only change what --optimizer names."""


@dataclass(frozen=True)
class Condition:
    """Something that is true of an option's value: see the module."""

    name: str  # the option
    sign: str = ""  # "=" or "!=", or "" where any value but the default counts
    values: tuple[str, ...] = ()  # as they are written

    def holds(self, values: Mapping[str, Any], usual: Mapping[str, Any]) -> bool:
        """Whether the options have such a value; `usual` are the defaults. False for options that are not there."""
        value = values.get(self.name)
        if value is None or not self.values:
            return value is not None and value != usual[self.name]
        return (_text(value) in self.values) == (self.sign == "=")

    def __str__(self) -> str:
        """What the command line would say: "--optimizer sgd or lars"."""
        return f"{flag_of(self.name)} {' or '.join(self.values)}".rstrip()


@dataclass(frozen=True)
class Row:
    """One option, and another one that it excludes or needs."""

    option: Condition
    other: Condition
    excludes: bool  # whether it excludes the other one
    why: str  # one sentence; of a need, for where the other option is not given
    hint: str  # what to do

    def refusal(self, values: Mapping[str, Any], usual: Mapping[str, Any]) -> UsageError | None:
        """Raised for these options; None where the row does not apply."""
        name = self.other.name
        if not self.option.holds(values, usual) or name not in values:
            return None
        if self.other.holds(values, usual) != self.excludes:
            return None
        fact, why = f"{_shown(self.option.name, values)} is given", self.why
        if self.excludes:
            return UsageError(f"{fact} with {_shown(name, values)}.", why, self.hint)
        if self.other.values and values[name] is not None:
            return UsageError(f"{fact} with {_shown(name, values)}.", "It would change nothing.", self.hint)
        return UsageError(f"{fact} without {self.other}.", why, self.hint)


def refuse_conflicts(values: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise `UsageError` for the first row of the table that applies to these options, whose defaults are `usual`. Rows
    on others are passed over."""
    for row in _rows_with(values.get("optimizer")):
        if (error := row.refusal(values, usual)) is not None:
            raise error


def flag_of(name: str) -> str:
    """ "data.max_corrupt" → "--data.max-corrupt"."""
    return "--" + name.replace("_", "-")


def _shown(name: str, values: Mapping[str, Any]) -> str:
    """As it was given: "--lr 0.1", "--nesterov"."""
    flag, value = "--parallel" if name == "parallel.choose" else flag_of(name), values[name]
    return flag if value is True else f"{flag} {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _conditions(text: str) -> Iterator[Condition]:
    for word in text.split():
        name, sign, values = re.split(r"(!?=|$)", word, maxsplit=1)
        yield Condition(name, sign, tuple(values.split("|")) if sign else ())


def _rows(table: str) -> Iterator[Row]:
    for block in re.split(r"\n(?! )", table.strip()):
        head, *texts = (line.strip() for line in block.splitlines())
        options, kind, others = re.split(r" (excludes|needs) ", head)
        hints = [text.removeprefix("HINT: ") for text in texts if text.startswith("HINT: ")]
        why = texts[0] if texts else "It would change nothing."
        for option in _conditions(options):
            for other in _conditions(others):
                usual = "leave one of them out." if kind == "excludes" else f"it goes with {other}."
                yield Row(option, other, kind == "excludes", why, hints[0] if hints else usual)


def _rows_of(optimizers: Mapping[str, Optimizer]) -> Iterator[Row]:
    settings = [*dict.fromkeys(option for optimizer in optimizers.values() for option in optimizer.usual)]
    names = {
        option: "|".join(name for name, other in optimizers.items() if option in other.usual) for option in settings
    }
    whole = "|".join(name for name, optimizer in optimizers.items() if optimizer.uses_norms)
    table = [
        f"shard excludes optimizer={whole}",
        "    Each worker updates parts of weights, and this optimizer needs the norm of a whole one.",
        "    HINT: use adamw or sgd, or leave --shard out.",
    ]
    for option, having in {**names, "decay_norm_and_bias": "|".join(optimizers)}.items():
        table.append(f"{option} needs optimizer={having}")
        table.append("    The task builds its own optimizer, with its own settings.")
    yield from _rows("\n".join(table))


_TABLE_ROWS: Final = list(_rows(_TABLE))

ROWS: Final = [*_TABLE_ROWS, *_rows_of(OPTIMIZERS)]  # All rows, in the order in which they are looked at


@functools.cache
def _rows_with(optimizer: str | None) -> list[Row]:
    """All rows where --optimizer may name one that a package adds; raises `UsageError` where none is called so."""
    if optimizer is None or optimizer in OPTIMIZERS:
        return ROWS
    return [*_TABLE_ROWS, *_rows_of({**OPTIMIZERS, optimizer: optimizer_named(optimizer)})]
