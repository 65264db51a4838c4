"""Language modelling on any text files, byte by byte: which records there are, and what is predicted from them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding import Catalog, PackedSequences, RecordBatch, RecordReader
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
        pack: whether the short records at the ends of files are put behind each other, as many as fit into one.
    """

    defaults: ClassVar[TaskDefaults] = TaskDefaults(epochs=5, global_batch_size=32, lr=1e-3, warmup_epochs=0.25)
    needs_data_dir: ClassVar[bool] = True
    opens_early: ClassVar[bool] = True

    def __init__(
        self,
        context: int = 128,
        width: int = 128,
        heads: int = 4,
        blocks: int = 4,
        weight_decay: float = 0.1,
        pack: bool = False,
    ) -> None:
        if min(context, width, heads, blocks) < 1 or width % heads or weight_decay < 0:
            raise UsageError(
                f"The task's arguments are context={context}, width={width}, heads={heads}, blocks={blocks} and "
                f"weight_decay={weight_decay:g}.",
                "Each head takes an equal part of the width, sizes are 1 or more, and decay is not negative.",
                "give a width that is a multiple of heads, or leave these out.",
            )
        self.context, self.width, self.heads, self.blocks = context, width, heads, blocks
        self.weight_decay, self.pack = weight_decay, pack

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
        return self._rows(data, data.catalog(pattern, format=TextFormat(self.context)))

    def decode(self, records: RecordBatch) -> Features:
        """ "seen": int32 [n, context], bytes; "next": int64 [n, context], the byte behind each, or `NOTHING`.

        With `pack`, "positions" and "segments" too, int32 [n, context].
        """
        if self.pack:
            assert records.collate is not None  # the records are rows of an object
            return _of_rows(records.collate(records.payloads))
        text = np.full((len(records), self.context + 1), NOTHING, np.int64)
        for row, record in enumerate(records):
            text[row, : len(record)] = np.frombuffer(record, np.uint8)
        return {"seen": np.maximum(text[:, :-1], 0).astype(np.int32), "next": text[:, 1:].copy()}

    def example(self) -> Features:
        zeros = np.zeros((2, self.context), np.int32)
        more = {"positions": zeros, "segments": zeros} if self.pack else {}
        return {"seen": zeros, "next": zeros.astype(np.int64), **more}

    def inputs(self, batch: Mapping[str, Any]) -> list[Any]:
        """What the model takes of a batch."""
        return [batch[name] for name in (("seen", "positions", "segments") if self.pack else ("seen",))]

    def _named(self, data: DataAccess, names: str) -> Catalog | None:
        try:
            return self._rows(data, data.catalog(names, format=TextFormat(self.context)))
        except MissingDataError:
            return None

    def _part(self, data: DataAccess, first: float, last: float) -> Catalog:
        try:
            return self._rows(data, data.catalog(format=TextFormat(self.context, first, last)))
        except MissingDataError as error:
            raise UsageError(
                f"{data.path('')} holds no text to {'validate' if first else 'train'} on: {error.fact}",
                "Looked for were train*.txt, and then *.txt, which need some ten records each.",
                f"put longer text files there, or give fewer bytes a record than --task-args.context {self.context}.",
            ) from error

    def _rows(self, data: DataAccess, windows: Catalog) -> Catalog:
        if not self.pack:
            return windows
        rows = PackedSequences(_Windows(windows), self.context + 1, lengths=windows.lengths)
        return data.dataset(rows, version=windows.fingerprint)


class _Windows(Sequence[NDArray[np.uint8]]):
    """The records of text files as arrays of bytes."""

    def __init__(self, catalog: Catalog) -> None:
        self._reader = RecordReader(catalog)

    def __len__(self) -> int:
        return len(self._reader.catalog)

    def __getitem__(self, number: Any) -> Any:
        (record,) = self._reader.read(np.array([number]))
        return np.frombuffer(record, np.uint8)


def _of_rows(rows: Features) -> Features:
    """What is predicted from packed rows of context + 1 bytes: nothing behind the last byte of a sequence."""
    text, segments = rows["tokens"], rows["segments"]
    goes_on = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return {
        "seen": text[:, :-1].astype(np.int32),
        "next": np.where(goes_on, text[:, 1:].astype(np.int64), NOTHING),
        "positions": rows["positions"][:, :-1].copy(),
        "segments": segments[:, :-1].copy(),
    }
