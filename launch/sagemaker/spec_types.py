"""Of which type each argument of a job is: what JSON and the API take, before anything else is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from hvdtrain.errors import UsageError

if TYPE_CHECKING:
    from hvdtrain.launch.sagemaker.spec import TrainingSpec

_TEXT = ("instance_type", "input_mode", "base_job_name", "custom_mpi_options")
_OPTIONAL_TEXT = (
    *("task", "entry_point", "image", "role", "region", "checkpoint_s3_uri", "output_path"),
    *("network_interface_name", "volume_kms_key", "output_kms_key"),
)
_WHOLE = ("instance_count", "processes_per_host", "volume_size_gb", "max_run_s")
_OPTIONAL_WHOLE = ("max_wait_s", "max_retry_attempts", "keep_alive_period_s")
_TRUTH = ("use_spot", "encrypt_inter_container_traffic")
_TEXTS = ("subnets", "security_group_ids", "container_entrypoint")
_MAPPINGS = ("environment", "tags", "metric_definitions")
_NOTHING = type(None)
_EXAMPLES = {
    "text": "role='arn:aws:iam::111122223333:role/train'",
    "a path": "source_dir='src'",
    "a whole number": "instance_count=2",
    "True or False": "use_spot=True",
    "a tuple": "subnets=('subnet-1',)",
    "a mapping": "environment={'NCCL_DEBUG': 'INFO'}",
}
"""What an argument must be, as far as messages begin so → one that is so."""


def require_types(spec: TrainingSpec) -> None:
    """Raise UsageError for the first argument of another type than its own."""
    rules: list[tuple[tuple[str, ...], tuple[type, ...], str]] = [
        (_TEXT, (str,), "text"),
        (_OPTIONAL_TEXT, (str, _NOTHING), "text or None"),
        (("source_dir",), (str, PathLike, _NOTHING), "a path or None"),
        (_WHOLE, (int,), "a whole number"),
        (_OPTIONAL_WHOLE, (int, _NOTHING), "a whole number or None"),
        (_TRUTH, (bool,), "True or False"),
        (_TEXTS, (tuple, list), "a tuple of texts"),
        ((*_MAPPINGS, "hyperparameters"), (Mapping,), "a mapping"),
    ]
    for names, types, wanted in rules:
        for name in names:
            value = getattr(spec, name)
            truth_for_number = isinstance(value, bool) and bool not in types
            if truth_for_number or not isinstance(value, types):
                raise _refusal(f"The argument {name}", value, wanted)
    for name in (*_TEXT, *_OPTIONAL_TEXT, "source_dir"):
        if "\0" in str(getattr(spec, name)):
            raise _refusal(f"The argument {name}", getattr(spec, name), "text without a NUL")
    _require_text_inside(spec)


def _require_text_inside(spec: TrainingSpec) -> None:
    for name in _TEXTS:
        for value in getattr(spec, name):
            if not isinstance(value, str):
                raise _refusal(f"An entry of {name}", value, "text", _EXAMPLES["a tuple"])
    for name in (*_MAPPINGS, "hyperparameters"):
        for key, value in getattr(spec, name).items():
            if not isinstance(key, str):
                raise _refusal(f"A name in {name}", key, "text", _EXAMPLES["a mapping"])
            if name != "hyperparameters" and not isinstance(value, str):
                raise _secret_refusal(f"{name}[{key[:80]!r}]", value, "text")
            if "\0" in f"{key}{value}":
                raise _secret_refusal(f"{name}[{key[:80]!r}]", value, "text without a NUL")


def _refusal(what: str, value: Any, wanted: str, example: str | None = None) -> UsageError:
    example = example or next(text for begin, text in _EXAMPLES.items() if wanted.startswith(begin))
    return UsageError(
        f"{what} is {repr(value)[:80]}, of type {type(value).__name__}.",
        f"It must be {wanted}.",
        f"write it as in {example}.",
    )


def _secret_refusal(what: str, value: Any, wanted: str) -> UsageError:
    """The same without the value, which may be nobody else's business."""
    kind = type(value).__name__
    return UsageError(
        f"The value {what} is of type {kind}.", f"It must be {wanted}.", f"write it as in {_EXAMPLES['a mapping']}."
    )
