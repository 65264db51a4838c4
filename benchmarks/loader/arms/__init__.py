"""One module for each library; each is imported only in the process that measures it."""

from __future__ import annotations

import importlib
from typing import Final

from benchmarks.loader.arms.interface import Arm

# Name of an arm: module, class, its options. The first arm of a format converts the data to it.
_ARMS: Final[dict[str, tuple[str, str, dict[str, bool]]]] = {
    "data_sharding": ("ours", "LoaderArm", {"check_crc": True}),
    "data_sharding_again": ("ours", "LoaderArm", {"check_crc": True}),
    "data_sharding_no_crc": ("ours", "LoaderArm", {"check_crc": False}),
    "data_sharding_reader": ("ours", "ReaderArm", {"check_crc": True}),
    "data_sharding_reader_no_crc": ("ours", "ReaderArm", {"check_crc": False}),
    "tf_data": ("tf_data", "TfDataArm", {}),
    "webdataset": ("web_dataset", "WebDatasetArm", {}),
    "mosaicml": ("mosaicml", "MosaicArm", {}),
    "grain": ("grain_source", "GrainArm", {"check_crc": False}),
    "grain_crc": ("grain_source", "GrainArm", {"check_crc": True}),
    "grain_array_record": ("grain_source", "ArrayRecordArm", {}),
    "tfrecord": ("tfrecord_package", "TfRecordArm", {}),
}
OURS: Final = tuple(name for name, (module, _, _) in _ARMS.items() if module == "ours")
PEERS: Final = tuple(name for name in _ARMS if name not in OURS)


def make_arm(name: str) -> Arm:
    """Import the arm's library and make it.

    Raises:
        KeyError: there is no such arm.
        ImportError: its library is not installed here.
    """
    module, kind, options = _ARMS[name]
    arm: Arm = getattr(importlib.import_module(f"{__name__}.{module}"), kind)(**options)
    return arm
