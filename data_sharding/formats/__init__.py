"""Record formats: how their files are read and written, and how records are decoded.

`Catalog.index(paths, format=...)` takes a format by name, with its options from `format_named`. The functions here turn
payloads into what they hold; they need neither a framework nor an extra.
"""

from data_sharding.formats.cifar10 import decode_cifar10
from data_sharding.formats.image_folder import class_names
from data_sharding.formats.mnist import decode_mnist
from data_sharding.formats.numpy_arrays import decode_rows, row_type
from data_sharding.formats.recordio import decode_image_record
from data_sharding.formats.registry import FORMAT_NAMES, format_named
from data_sharding.formats.tar_members import tar_members
from data_sharding.formats.tfrecord import write_idx
from data_sharding.formats.writers import RecordIOWriter, TarWriter, TFRecordWriter

__all__ = [
    "FORMAT_NAMES",
    "RecordIOWriter",
    "TFRecordWriter",
    "TarWriter",
    "class_names",
    "decode_cifar10",
    "decode_image_record",
    "decode_mnist",
    "decode_rows",
    "format_named",
    "row_type",
    "tar_members",
    "write_idx",
]
