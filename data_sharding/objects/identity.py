"""What tells one object's data from another's: its own fingerprint, or its class, its length and some of its items."""

import contextlib
import dataclasses
import datetime
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from data_sharding.objects.arrays import as_array
from data_sharding.objects.item_draws import generators_restored, seed
from data_sharding.objects.items import ItemSource

_SAMPLES: Final = 3
_PLAIN: Final = (
    *(str, int, float, bool, complex, Decimal, Fraction),
    *(datetime.date, datetime.time, datetime.timedelta, uuid.UUID, PurePath),
)
"""Values whose `repr` is the value."""


def identity_of(source: ItemSource) -> str:
    """Hex SHA-256: of Hugging Face's own fingerprint; else of class, length, and the first, middle and last item."""
    dataset, digest = source.dataset, hashlib.sha256(b"data_sharding.object/1")
    own = getattr(dataset, "_fingerprint", None)
    digest.update(f"{type(dataset).__module__}.{type(dataset).__qualname__} {len(source)} ".encode())
    if isinstance(own, str):
        digest.update(own.encode())
        return digest.hexdigest()
    with generators_restored():
        for number in np.unique(np.linspace(0, len(source) - 1, _SAMPLES).astype(np.int64)).tolist():
            seed(number)  # an item that draws numbers is then the same one in each process
            _add(digest, source.items(np.array([number]))[0])
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """The bytes of a value, with what tells a text from a number; of what is none of these, the class."""
    digest.update(f" {type(value).__qualname__} ".encode())
    if value is None or isinstance(value, _PLAIN):
        digest.update(repr(value).encode())
    elif isinstance(value, bytes):
        digest.update(value)
    elif isinstance(value, Mapping):
        for name in value:
            digest.update(str(name).encode())
            _add(digest, value[name])
    elif isinstance(value, Sequence):
        for item in value:
            _add(digest, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _add(digest, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    elif isinstance(value, set | frozenset):
        digest.update(b"".join(sorted(map(_digest_of, value))))  # in no order that differs between processes
    elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):  # PIL's pictures have the second one
        _add_array(digest, value)


def _digest_of(value: Any) -> bytes:
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.digest()


def _add_array(digest: Any, value: Any) -> None:
    with contextlib.suppress(OSError):  # a damaged picture, which is found again where it is read
        array = as_array(value)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes() if array.dtype != object else repr(array.tolist()).encode())
