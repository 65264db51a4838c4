"""The names of `horovod.torch.functions`, with a deadline."""

from horovod.torch import functions as _horovod

from hvdtrain.torch.collectives import bounded

allgather_object = bounded(_horovod.allgather_object)
broadcast_object = bounded(_horovod.broadcast_object)
broadcast_optimizer_state = bounded(_horovod.broadcast_optimizer_state)
broadcast_parameters = bounded(_horovod.broadcast_parameters)
