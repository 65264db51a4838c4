"""The channels of a container: what each is called, and how its data come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.sagemaker.spec_checks import INPUT_MODES

PIPE = "Pipe"

_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")  # API_Channel, ChannelName


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel.

    Attributes:
        name: its folder's, or what its FIFOs begin with.
        mode: "File", "FastFile" (a folder as well, whose files are fetched while they are read) or "Pipe".
    """

    name: str
    mode: str

    @property
    def is_pipe(self) -> bool:
        """Whether its data come through FIFOs, `NAME_0` for the first epoch."""
        return self.mode == PIPE


def read_channels(inputs: Mapping[str, Any]) -> dict[str, Channel]:
    """From the content of inputdataconfig.json: {"train": {"TrainingInputMode": "File", …}, …}.

    Raises:
        UsageError: it is not as SageMaker writes it.
    """
    return {name: _channel(name, described) for name, described in inputs.items()}


def _channel(name: str, described: Any) -> Channel:
    if not _NAME.fullmatch(name) or set(name) == {"."}:
        raise UsageError(
            f"inputdataconfig.json has a channel {name[:80]!r}.",
            "Channels are named by letters, digits, `.`, `-` and `_`, since each becomes a folder.",
            "choose another name.",
        )
    mode = described.get("TrainingInputMode") if isinstance(described, dict) else None
    if mode not in INPUT_MODES:
        raise UsageError(
            f"inputdataconfig.json gives the channel {name} the TrainingInputMode {mode!r}.",
            "It says whether the data come as files or through FIFOs.",
            did_you_mean(str(mode), INPUT_MODES),
        )
    return Channel(name, mode)
