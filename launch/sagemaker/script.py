"""A job as a Python script to edit and run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hvdtrain.launch.sagemaker.inputs import Input, PipePlanInput, TrainingInput
from hvdtrain.launch.sagemaker.spec import TrainingSpec

_TEMPLATE = '''\
"""{title}

Edit it, then: python {file} --dry-run to see the request, and without the flag to train.
"""

import json
import sys

from hvdtrain.launch.sagemaker import {names}

estimator = Estimator(
{arguments}
)
inputs: dict[str, Input] = {inputs}

if __name__ == "__main__":
    if "--dry-run" in sys.argv[1:]:
        print(json.dumps(estimator.request(inputs), indent=2))
    else:
        estimator.fit(inputs)
        print(estimator.model_data)
'''


def script(spec: TrainingSpec, inputs: Mapping[str, Input], title: str, file: str) -> str:
    """The text of a script that trains what `spec` says on `inputs`.

    Args:
        spec: the job.
        inputs: what `fit` takes, by channel.
        title: one line on what it does.
        file: its name, for its usage.
    """
    used = {type(value).__name__ for value in inputs.values()} & {"PipePlanInput", "TrainingInput"}
    arguments = "\n".join(f"    {name}={value}," for name, value in _arguments(spec).items())
    return _TEMPLATE.format(
        title=title,
        file=file,
        names=", ".join(sorted({"Estimator", "Input", *used})),
        arguments=arguments,
        inputs=_inputs(inputs),
    )


def _arguments(spec: TrainingSpec) -> dict[str, str]:
    plain = TrainingSpec(task="plain")
    values = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return {name: _literal(value) for name, value in values.items() if value != getattr(plain, name)}


def _inputs(inputs: Mapping[str, Input]) -> str:
    return "{\n" + "".join(f"    {_literal(name)}: {_value(value)},\n" for name, value in inputs.items()) + "}"


def _value(value: Input) -> str:
    if isinstance(value, TrainingInput | PipePlanInput):
        given = [getattr(value, field.name) for field in fields(value)]
        named = [
            f"{field.name}={_literal(one)}"
            for field, one in zip(fields(value), given, strict=True)
            if one != field.default and field.name not in ("s3_data", "folder")
        ]
        return f"{type(value).__name__}({', '.join([_literal(given[0]), *named])})"
    return _literal(value)


def _literal(value: Any) -> str:
    """As `repr`, with the quotes that formatters like."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_literal(one)}, " for one in value).removesuffix(" " if len(value) == 1 else ", ") + ")"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
