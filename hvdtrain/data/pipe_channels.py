"""This rank's pipe, opened only after all ranks have compared which channels they will open."""

import socket
from dataclasses import asdict
from pathlib import Path

from data_sharding.pipe.fifo import PassName, await_fifo
from data_sharding.pipe.locks import FifoOpener, check_openers
from data_sharding.pipe.pipe_plan import PipePlan
from data_sharding.pipe.pipe_reader import PipePass, PipeReader
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.config.train_config import DataConfig


class PipeChannels:
    """This rank's channel, opened again for each epoch, after all ranks have shown each other what they would open.

    All ranks call each method.
    """

    def __init__(self, plan: PipePlan, comm: Communicator, config: DataConfig) -> None:
        self._comm, self._config, self._framing = comm, config, plan.framing
        self._channel = plan.channel(comm.topology.rank, comm.topology.local_rank).name
        self._reader: PipeReader | None = None
        self.epoch = 0
        """Number of the next FIFO: every process counts its own."""

    def open(self) -> PipePass:
        """Open the next FIFO. Raises HvdtrainError on all ranks, if one of them cannot."""
        name = f"hvdtrain.pipe.{self.epoch}"
        # Before waiting for any FIFO: a second job would wait for one that the first job has read long ago.
        reader = agree(self._comm, self._channel_reader, f"{name}.lock")
        opener = agree(self._comm, self._opener, f"{name}.wait")
        openers = [FifoOpener(**each) for each in gather_json(self._comm, asdict(opener), f"{name}.claims")]
        agree(self._comm, lambda: check_openers(openers), f"{name}.check")
        opened = agree(self._comm, reader.open, f"{name}.open")
        self.epoch += 1
        return opened

    def _opener(self) -> FifoOpener:
        topology, config = self._comm.topology, self._config
        status = await_fifo(PassName(pipe_folder(config), self._channel, self.epoch, topology.rank), config.timeout)
        return FifoOpener(
            rank=topology.rank,
            host=socket.gethostname(),
            local_rank=topology.local_rank,
            channel=self._channel,
            machine=_machine(),
            device=status.st_dev,
            inode=status.st_ino,
        )

    def _channel_reader(self) -> PipeReader:
        if self._reader is None:
            self._reader = PipeReader(
                pipe_folder(self._config),
                self._channel,
                rank=self._comm.topology.rank,
                framing=self._framing,
                timeout_s=self._config.timeout,
            )
        return self._reader


def pipe_folder(config: DataConfig) -> Path:
    return Path(config.pipe_dir or "").expanduser()


def _machine() -> str:
    """The kernel's own id, equal in all containers of a machine, which may share its FIFOs."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
