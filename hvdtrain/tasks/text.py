"""Language modelling on any text files, byte by byte: which records there are, and what is predicted from them."""

from typing import ClassVar, Final

import numpy as np

from data_sharding import Catalog, RecordBatch
from data_sharding.errors import MissingDataError
from data_sharding.formats.text_file import TextFormat
from hvdtrain.errors import UsageError
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task, TaskDefaults

SYMBOLS: Final = 256
NOTHING: Final = -100
"""The target behind the end of a short record; it is torch's own default for what is not to be predicted."""

_HELD_OUT: Final = 0.1


class Text(Task):
    """A small decoder-only transformer (GPT-2's architecture: Radford et al. 2019) that predicts the next byte.

    `--data.dir` holds train*.txt and validation*.txt, all of which is used; or other *.txt, of each of which the last
    tenth is for validation. Any encoding will do. The sizes are those of nanoGPT's train_shakespeare_char.py for CPUs
    (4 blocks, 4 heads, 128 wide, lr 1e-3, no dropout) with a context of 128 instead of 64.

    Args:
        context: bytes that the model sees at most, and bytes to predict in a record.
        width: of the model's vectors; a multiple of heads.
        heads: of each attention.
        blocks: of attention and two dense layers.
        weight_decay: of matrices, decoupled (AdamW).
    """

    defaults: ClassVar[TaskDefaults] = TaskDefaults(epochs=5, global_batch_size=32, lr=1e-3, warmup_epochs=0.25)
    needs_data_dir: ClassVar[bool] = True
    opens_early: ClassVar[bool] = True

    def __init__(
        self, context: int = 128, width: int = 128, heads: int = 4, blocks: int = 4, weight_decay: float = 0.1
    ) -> None:
        if min(context, width, heads, blocks) < 1 or width % heads or weight_decay < 0:
            raise UsageError(
                f"The task's arguments are context={context}, width={width}, heads={heads}, blocks={blocks} and "
                f"weight_decay={weight_decay:g}.",
                "Each head takes an equal part of the width, sizes are 1 or more, and decay is not negative.",
                "give a width that is a multiple of heads, or leave these out.",
            )
        self.context, self.width, self.heads, self.blocks = context, width, heads, blocks
        self.weight_decay = weight_decay

    def open_data(self, data: DataAccess) -> Splits:
        train = self._named(data, "train*.txt")
        if train is not None:
            return Splits(train, self._named(data, "validation*.txt"))
        return Splits(self._part(data, 0.0, 1 - _HELD_OUT), self._part(data, 1 - _HELD_OUT, 1.0))

    def open_validation(self, data: DataAccess) -> Catalog | None:
        validation = self._named(data, "validation*.txt")
        if validation is not None or self._named(data, "train*.txt") is not None:
            return validation
        return self._part(data, 1 - _HELD_OUT, 1.0)

    def open_set(self, data: DataAccess, pattern: str) -> Catalog:
        return data.catalog(pattern, format=TextFormat(self.context))

    def decode(self, records: RecordBatch) -> Features:
        """ "seen": int32 [n, context], bytes; "next": int64 [n, context], the byte behind each, or `NOTHING`."""
        text = np.full((len(records), self.context + 1), NOTHING, np.int64)
        for row, record in enumerate(records):
            text[row, : len(record)] = np.frombuffer(record, np.uint8)
        return {"seen": np.maximum(text[:, :-1], 0).astype(np.int32), "next": text[:, 1:].copy()}

    def example(self) -> Features:
        return {"seen": np.zeros((2, self.context), np.int32), "next": np.zeros((2, self.context), np.int64)}

    def _named(self, data: DataAccess, names: str) -> Catalog | None:
        try:
            return data.catalog(names, format=TextFormat(self.context))
        except MissingDataError:
            return None

    def _part(self, data: DataAccess, first: float, last: float) -> Catalog:
        try:
            return data.catalog(format=TextFormat(self.context, first, last))
        except MissingDataError as error:
            raise UsageError(
                f"{data.path('')} holds no text to {'validate' if first else 'train'} on: {error.fact}",
                "Looked for were train*.txt, and then *.txt, which need some ten records each.",
                f"put longer text files there, or give fewer bytes a record than --task-args.context {self.context}.",
            ) from error
