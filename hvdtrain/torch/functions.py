"""The names of `horovod.torch.functions`, with a deadline."""

from collections.abc import Iterable
from typing import Any

import torch
from horovod.torch import functions as _horovod

from hvdtrain.torch.collectives import bounded

allgather_object = bounded(_horovod.allgather_object)
broadcast_object = bounded(_horovod.broadcast_object)
broadcast_optimizer_state = bounded(_horovod.broadcast_optimizer_state)
_broadcast_parameters = bounded(_horovod.broadcast_parameters)


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks the root's tensors: a dict, as `model.state_dict()`, a list, or pairs of name and tensor.

    What is no tensor in a state dict is left alone.
    """
    if isinstance(params, dict):
        params = {name: value for name, value in params.items() if isinstance(value, torch.Tensor)}
    elif isinstance(params, Iterable):
        listed = list(params)
        params = [each if isinstance(each, tuple) else (f"parameter.{n}", each) for n, each in enumerate(listed)]
    _broadcast_parameters(params, root_rank)
