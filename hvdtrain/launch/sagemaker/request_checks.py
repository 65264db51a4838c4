"""Compare a request with botocore's model of SageMaker's API: fields, types, choices, patterns, sizes.

`botocore.validate.ParamValidator` finds missing, unknown and mistyped fields and leaves choices, patterns and maxima to
the service, which would refuse the job only after everything was uploaded. They stand in the same model, so they are
compared here.
"""

import functools
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hvdtrain.errors import UsageError, did_you_mean

_OPERATION = "CreateTrainingJob"
_SHOWN = 100
_ARGUMENTS = {
    "TrainingJobName": "job_name (--job-name)",
    "RoleArn": "role (--role)",
    "AlgorithmSpecification.TrainingImage": "image (--image)",
    "AlgorithmSpecification.MetricDefinitions": "metric_definitions (--metric)",
    "AlgorithmSpecification.ContainerEntrypoint": "container_entrypoint",
    "HyperParameters": "hyperparameters (what follows --): what is long, or more than 93, goes into a --config file",
    "InputDataConfig": "the channels (--channel); in mode Pipe each worker of a machine needs one, in File they share",
    "OutputDataConfig.S3OutputPath": "output_path (--output-path)",
    "ResourceConfig.VolumeSizeInGB": "volume_size_gb (--volume-size-gb)",
    "ResourceConfig.KeepAlivePeriodInSeconds": "keep_alive_period_s (--keep-alive-period-s)",
    "VpcConfig.Subnets": "subnets (--subnet)",
    "VpcConfig.SecurityGroupIds": "security_group_ids (--security-group)",
    "Tags": "tags (--tag)",
    "Environment": "environment (--env)",
    "CheckpointConfig": "checkpoint_s3_uri (--checkpoint-s3-uri)",
}
"""Field of the request → what sets it."""


def require_valid_request(request: dict[str, Any]) -> str | None:
    """Refuse a request that SageMaker's API would refuse. Returns what it was compared with, such as "botocore
    1.43.117"; None without botocore, so that nothing was compared. Raises UsageError: naming the first field that
    cannot be."""
    try:
        import botocore
        from botocore.validate import ParamValidator
    except ImportError:
        return None
    shape = _request_shape()
    report = ParamValidator().validate(request, shape).generate_report()
    if report:
        raise UsageError(
            f"The request is not as the API has it: {' '.join(report.split())}",
            "SageMaker would refuse it.",
            "see the API reference of CreateTrainingJob.",
        )
    for fact, conflict, hint in problems(request, shape):
        raise UsageError(fact, conflict, f"{hint} (Compared with botocore {botocore.__version__}.)")
    return f"botocore {botocore.__version__}"


@functools.cache
def _request_shape() -> Any:
    """From botocore's data alone: a session would read the user's configuration, and fail where that is broken."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
    return model.operation_model(_OPERATION).input_shape


def problems(value: Any, shape: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(fact, conflict, hint) of each value that breaks a choice, pattern or size of its `botocore.model.Shape`;
    `value`, whose types are right, is the part of a request at `path`."""
    yield from _size(value, shape, path)
    if shape.type_name == "structure":
        for name, member in value.items():
            yield from problems(member, shape.members[name], f"{path}.{name}" if path else name)
    elif shape.type_name == "list":
        for index, member in enumerate(value):
            yield from problems(member, shape.member, f"{path}[{index}]")
    elif shape.type_name == "map":
        for key, member in value.items():
            yield from problems(key, shape.key, f"a key of {path}")
            yield from problems(member, shape.value, f"{path}[{key!r}]")
    elif shape.type_name == "string":
        yield from _text(value, shape, path)


def _size(value: Any, shape: Any, path: str) -> Iterator[tuple[str, str, str]]:
    unit = {"string": " characters", "list": " entries", "map": " entries"}.get(shape.type_name, "")
    if not unit and shape.type_name not in ("integer", "long", "float", "double"):
        return
    size = len(value) if unit else value
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and size < least) or (most is not None and size > most):
        bounds = " to ".join("any" if bound is None else str(bound) for bound in (least, most))
        yield (f"{path} {'has' if unit else 'is'} {size}{unit}.", f"SageMaker takes {bounds}.", _change(path))


def _text(value: str, shape: Any, path: str) -> Iterator[tuple[str, str, str]]:
    choices, pattern = shape.metadata.get("enum"), shape.metadata.get("pattern")
    fact = f"{path} is {value[:_SHOWN]!r}."
    if choices and value not in choices:
        hint = did_you_mean(value, choices) if len(choices) <= 20 else _nearest(value, choices)
        yield (fact, "The API has no such choice.", hint)
    with suppress(re.error):  # some of the model's patterns are Java's alone: the service itself compares them
        if pattern and not re.fullmatch(pattern, value):
            yield (fact, f"It must match {pattern[: 2 * _SHOWN]}", _change(path))


def _change(path: str) -> str:
    """A hint that names the argument and option that a field comes from."""
    field = path.removeprefix("a key of ")
    argument_name = next((argument for begin, argument in _ARGUMENTS.items() if field.startswith(begin)), "it")
    return f"change {argument_name}."


def _nearest(value: str, choices: list[str]) -> str:
    """For a long list of choices such as ml.p3.8xlarge: the nearest, and its family."""
    near = did_you_mean(value, choices).partition("Valid: ")[0]
    family = [choice for choice in choices if choice.rpartition(".")[0] == value.rpartition(".")[0]]
    there = f"There are {', '.join(family)}; newer ones need" if family else "What is newer needs"
    return f"{near}{there} a newer botocore."
