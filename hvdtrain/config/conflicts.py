"""Which options exclude each other and which need another one: two tables, from which the refusals are made.

A condition is the name of an option, which means that it does not have its default, or name=value, with | between
several values, or name!=value.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hvdtrain.algorithms.update_rules import OPTIMIZERS
from hvdtrain.errors import UsageError


class Conflict(NamedTuple):
    """Options that exclude each other.

    Attributes:
        option: the condition on one option.
        others: conditions on other options, separated by spaces; each excludes `option`.
        why: one sentence.
        hint: which one to drop.
    """

    option: str
    others: str
    why: str
    hint: str = "leave one of them out."


class Need(NamedTuple):
    """An option that is of use only with another one.

    Attributes:
        option: the condition on it.
        needed: the condition on the other one.
        why: one sentence, for where the other one is not given.
        hint: what to do; "": names what is needed.
    """

    option: str
    needed: str
    why: str = "It would change nothing."
    hint: str = ""


SETTINGS_OF_OPTIMIZERS: Final = {
    option: [name for name, other in OPTIMIZERS.items() if option in other.usual]
    for optimizer in OPTIMIZERS.values()
    for option in optimizer.usual
} | {"decay_norm_and_bias": list(OPTIMIZERS)}
"""Option → the optimizers that have it."""

_OWN_OPTIMIZER: Final = "The task builds its own optimizer, with its own settings."
_NOT_DIVIDED: Final = "The model is not divided, so that it would change nothing."
_NO_SCALING: Final = "use --precision bf16, which needs no scaling."
_WHOLE_MODEL: Final = "A stage has a part of the layers and of each update only, and that option needs a whole model."
_GIVE_STAGES: Final = "give a number of stages, as --parallel.stages 2, or leave it out."

CONFLICTS: Final = (
    Conflict(
        "watchdog_action=end",
        "watchdog=never",
        "Nothing would end the job.",
        "leave out --watchdog never, or give a time.",
    ),
    Conflict(
        "batch_size",
        "global_batch_size",
        "One follows from the other and the number of workers.",
        "give --global-batch-size, which means the same training at every number of workers.",
    ),
    Conflict(
        "init_weights",
        "resume!=auto|never",
        "Each says which weights to start from.",
        "give --resume to continue a training, or --init-weights to begin a new one.",
    ),
    Conflict(
        "trace",
        "steps_per_call",
        "Several updates of one call are one operation, so that a trace would not show single ones.",
        "leave out --steps-per-call while you look at a trace.",
    ),
    Conflict("checkpoint_overlap=skip", "checkpoint_mode=sync", "No checkpoint overlaps another one then."),
    # Gradients: how they are computed and sent
    Conflict("nesterov", "momentum=0", "There is no momentum to look ahead by.", "drop one."),
    Conflict(
        "compression",
        "reduce_op=adasum",
        "Adasum weighs gradients by their scalar products, which are not those of the compressed ones.",
    ),
    Conflict(
        "compression=powersgd",
        "precision=fp16",
        "A step whose scaled gradients overflow would spoil the error that powersgd carries on.",
        _NO_SCALING,
    ),
    Conflict(
        "sparse_gradients",
        "compression reduce_op sync_every",
        "Rows are gathered as they are, and added up.",
        "leave --sparse-gradients out, which makes them dense.",
    ),
    Conflict(
        "steps_per_call",
        "accumulate_steps sync_every precision=fp16",
        "It has something to do in Python between two steps.",
        "leave --steps-per-call out.",
    ),
    Conflict(
        "data_parallel",
        "sync_every compression sync_batch_norm",
        "This is for several workers, and DataParallel is one process on several GPUs.",
        "leave --data-parallel out, and start one worker per GPU.",
    ),
    Conflict(
        "gradient_sync",
        "compression sync_every sparse_gradients reduce_op=adasum",
        "It sums gradients as they are, for comparison.",
        "leave --gradient-sync out.",
    ),
    Conflict("bucket_cap_mb", "gradient_sync", "There are no buckets."),
    Conflict(
        "bucket_cap_mb",
        "sync_every sparse_gradients",
        "Gradients are not all summed in buckets at each update then.",
    ),
    # Local SGD
    Conflict("compression", "sync_every", "Local SGD sends weights, which are not to be rounded."),
    Conflict("reduce_op", "sync_every", "Local SGD averages weights, and no gradients."),
    Conflict(
        "precision=fp16",
        "sync_every",
        "Each worker would decide by its own gradients whether an update is skipped, and scale them differently.",
        _NO_SCALING,
    ),
    Conflict(
        "sync_batch_norm",
        "sync_every",
        "Workers would wait for each other in every layer, which local SGD is to avoid.",
    ),
    # What is divided between workers
    Conflict(
        "shard",
        "compression reduce_op=adasum sync_every gradient_sync sparse_gradients",
        "Each worker gets its part of the summed gradients by a reducescatter, which the other option replaces.",
    ),
    Conflict(
        "shard",
        "optimizer=lars|lamb",
        "Each worker updates parts of weights, and this optimizer needs the norm of a whole one.",
        "use adamw or sgd, or leave --shard out.",
    ),
    Conflict(
        "parallel.choose",
        "parallel.devices",
        "It chooses what each of several workers trains, on a device of its own.",
        "leave one of them out, or give --parallel.stages instead of auto.",
    ),
    Conflict("parallel.choose", "parallel.stages", "It chooses how many stages there are."),
    Conflict("parallel.choose", "shard", "It chooses that too."),
    Conflict(
        "parallel.stages",
        "accumulate_steps",
        _WHOLE_MODEL,
        "leave one of them out; --parallel.micro-batches cuts a worker's batch in the same way.",
    ),
    Conflict(
        "parallel.stages",
        "steps_per_call sync_batch_norm compile data_parallel compression=bf16|powersgd reduce_op=adasum sync_every "
        "sparse_gradients gradient_sync",
        _WHOLE_MODEL,
    ),
    Conflict(
        "parallel.stages",
        "shard",
        _WHOLE_MODEL,
        "leave one of them out; stages divide the optimizer's state already.",
    ),
)
"""Options that exclude each other; the first row that applies is the refusal."""

NEEDS: Final = (
    Need(
        "init_weights_exclude",
        "init_weights",
        "All weights are fresh then.",
        "give the file or run to start from as --init-weights PATH.",
    ),
    Need(
        "lr_scaling",
        "reference_batch_size",
        "Scaling multiplies lr by (global batch / reference batch), and the second number is unknown.",
        "give the global batch size for which --lr was tuned, e.g. --reference-batch-size 256.",
    ),
    Need(
        "mtbf",
        "checkpoint_every=auto",
        hint="let the time between checkpoints follow from it with --checkpoint-every auto.",
    ),
    Need(
        "checkpoint_overlap=skip",
        "checkpoint_interval",
        "Only checkpoints of that interval are skipped, and there are none.",
        "give the interval as --checkpoint-interval 1000, or leave the other one out.",
    ),
    Need(
        "early_stopping_min_delta!=0",
        "early_stopping_patience",
        hint="say how many validations to wait, e.g. --early-stopping-patience 3.",
    ),
    Need(
        "best_mode",
        "best_metric",
        "Of the loss, which is compared then, the smallest is the best.",
        "name the metric, e.g. --best-metric accuracy.",
    ),
    Need("powersgd_rank", "compression=powersgd", hint="give --compression powersgd, or leave it out."),
    Need(
        "process_sets",
        "sync_every",
        "The sets would train different models for ever.",
        "say after how many updates the weights of all are averaged, e.g. --sync-every 8.",
    ),
    Need("lr_power", "lr_schedule=polynomial"),
    Need("lr_min", "lr_schedule=cosine|linear|polynomial"),
    Need("lr_milestones", "lr_schedule=step"),
    Need("lr_gamma", "lr_schedule=step"),
    *(Need(option, f"optimizer={'|'.join(names)}", _OWN_OPTIMIZER) for option, names in SETTINGS_OF_OPTIMIZERS.items()),
    *(
        Need(f"parallel.{option}", "parallel.stages", _NOT_DIVIDED, _GIVE_STAGES)
        for option in ("devices", "micro_batches", "schedule", "cuts", "transport")
    ),
)
"""Options that are of use only with another one; the first row that applies is the refusal."""

_CONDITION = re.compile(r"(?P<name>[\w.]+)(?:(?P<sign>!?=)(?P<values>.+))?")


def refuse_conflicts(values: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise `UsageError` for the first row of the tables that applies.

    Args:
        values: the options by name; rows on others are passed over.
        usual: their defaults.
    """
    given = _Given(values, usual)
    for conflict in CONFLICTS:
        if not given.holds(conflict.option):
            continue
        for other in conflict.others.split():
            if given.holds(other):
                fact = f"{given.shown(conflict.option)} is given with {given.shown(other)}."
                raise UsageError(fact, conflict.why, conflict.hint)
    for need in NEEDS:
        if given.holds(need.option) and given.lacks(need.needed):
            fact, is_elsewhere = given.lack(need.option, need.needed)
            why = "It would change nothing." if is_elsewhere else need.why
            raise UsageError(fact, why, need.hint or f"it goes with {_in_words(need.needed)}.")


class _Given(NamedTuple):
    """The options that conditions are about."""

    values: Mapping[str, Any]
    usual: Mapping[str, Any]

    def holds(self, condition: str) -> bool:
        name, sign, wanted = _parts(condition)
        value = self.values.get(name)
        if value is None or not wanted:
            return value is not None and value != self.usual[name]
        return (_text(value) in wanted) == (sign == "=")

    def lacks(self, condition: str) -> bool:
        return _parts(condition)[0] in self.values and not self.holds(condition)

    def shown(self, condition: str) -> str:
        """The option as it was given: "--lr 0.1", "--nesterov"."""
        name = _parts(condition)[0]
        value = self.values[name]
        flag = "--parallel" if name == "parallel.choose" else flag_of(name)
        return flag if value is True else f"{flag} {_text(value)}"

    def lack(self, option: str, needed: str) -> tuple[str, bool]:
        """The fact, and whether the needed option is given, with another value."""
        name, _, wanted = _parts(needed)
        if wanted and self.values[name] is not None:
            return f"{self.shown(option)} is given with {self.shown(needed)}.", True
        return f"{self.shown(option)} is given without {_in_words(needed)}.", False


def _parts(condition: str) -> tuple[str, str, list[str]]:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ValueError(f"{condition!r} is not a condition")
    return match["name"], match["sign"] or "", (match["values"] or "").split("|") if match["sign"] else []


def flag_of(name: str) -> str:
    """ "data.max_corrupt" → "--data.max-corrupt"."""
    return "--" + name.replace("_", "-")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_words(condition: str) -> str:
    name, _, values = _parts(condition)
    return f"{flag_of(name)} {' or '.join(values)}".rstrip()
