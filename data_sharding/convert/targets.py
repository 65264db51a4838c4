"""What a record of one format becomes in another, and the files that it is written to.

    from                     to tfrecord, recordio                            to tar
    tfrecord, recordio,      the same bytes                                   "example": a member for each feature;
    mds, and rows of                                                          "opaque": one member, .bin
    tables as Examples
    tar                      Example of each member's bytes, by extension,    the same members under the same key
                             and the key as "__key__"
    any other                Example of the payload, as "image" for           the payload as .bin, or with its file's
                             image_folder, cifar10 and mnist, else "data";    own name and extension for image_folder;
                             the label, if there is one, as "label"           the label in decimal as .cls

Examples are tf.train.Example. Payloads stay the bytes that they are: dtype and shape of a row of npz, CIFAR-10 or MNIST
are not kept, and whoever decodes it must know them. A label beside an Example becomes a feature with the name of its
column. As a member, a feature of one bytes value is its bytes, one of a
single integer is it in decimal, and other numbers are a .npy file, named `<feature>.npy`; the feature "__key__" is the
sample's key instead. Names are turned to lower case, "/" to ".", for that is all that readers of tar shards understand.
Images of a folder keep their names (`ImageNames`), other samples without a key get their number. If two samples in a
row have the same key, the number is added to the second's: readers would take them for one.
"""

import contextlib
import glob
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import google_crc32c
import numpy as np

from data_sharding import example
from data_sharding.errors import ExampleError, PlanError
from data_sharding.example import Feature, FeatureInput
from data_sharding.formats.record_format import RecordFormat
from data_sharding.formats.recordio import RecordIOFormat
from data_sharding.formats.tar_members import SampleParts, TarSample, tar_sample
from data_sharding.formats.writers import RecordIOWriter, TarWriter, TFRecordWriter
from data_sharding.reading.record_table import RecordTable

SUFFIXES: Final = {"tfrecord": ".tfrecord", "recordio": ".rec", "tar": ".tar"}
"""Formats that can be written, with the extension of their files."""

Payloads = Literal["example", "opaque"]
"""What payloads that may be Examples are to be taken for on the way to tar."""

_OPAQUE_FORMATS: Final = ("tfrecord", "recordio")
_IMAGE_FORMATS: Final = ("image_folder", "cifar10", "mnist")
_KEY: Final = "__key__"


class SourceRecord(NamedTuple):
    """One record on its way."""

    number: int  # its place among the records written, from 0 on
    source_id: int  # its id in the catalog that it is read from
    payload: bytes
    label: int | None  # what the source keeps apart from the payload, if anything
    key: str = ""  # name of the sample that it becomes, if it has one
    suffix: str = ""  # extension of its file without the dot, if it has one


Encoder = Callable[[SourceRecord], bytes | TarSample]


def encoder_of(source: RecordTable, target: str, payloads: Payloads | None) -> Encoder:
    """As `encoder`, for the records of a catalog."""
    label = source.format.example_label(source.files[0])
    encode = encoder(source.format.name, target, payloads, has_examples=label is not None)
    return (lambda record: encode(_with_label(record, label))) if label else encode


def encoder(source_format: str, target: str, payloads: Payloads | None, has_examples: bool = False) -> Encoder:
    """How records of a format become samples of a tar shard, or payloads of the other targets.

    `payloads` of tfrecord are Examples by default on the way to tar, those of recordio are not; `has_examples`: those
    of this format are. Raises PlanError (they are not on such a way).
    """
    is_kept = has_examples or source_format in _OPAQUE_FORMATS
    if payloads and (target != "tar" or not is_kept):
        fact = f"Payloads of {source_format} were to be taken for {payloads} on the way to {target}."
        conflict = f"That can be chosen on the way from {' or '.join(_OPAQUE_FORMATS)}, or from Examples, to tar only."
        raise PlanError(fact, conflict, "leave it out.")
    if target == "tar":
        if source_format == "tar":
            return lambda record: tar_sample(record.payload)
        if not is_kept:
            return _sample_of_payload
        if (payloads or ("opaque" if source_format == "recordio" else "example")) == "opaque":
            return lambda record: TarSample(_numbered(record), {"bin": record.payload})
        return _sample_of_example
    if is_kept:
        return lambda record: record.payload
    if source_format == "tar":
        return _example_of_sample
    name = "image" if source_format in _IMAGE_FORMATS else "data"
    return lambda record: _example_of_payload(name, record)


def digest(content: bytes | TarSample) -> int:
    """CRC-32C of a payload; of a sample, that of its key, names, lengths and bytes."""
    if isinstance(content, bytes):
        return int(google_crc32c.value(content))
    crc = google_crc32c.value(content.key.encode("utf-8", "surrogateescape"))
    for name, member in content.members.items():
        head = f"\0{len(member)}\0{name}\0".encode("utf-8", "surrogateescape")
        crc = google_crc32c.extend(google_crc32c.extend(crc, head), member)
    return int(crc)


def _with_label(record: SourceRecord, name: str) -> SourceRecord:
    """A record with its label inside: serialized messages that follow each other are read as one, with all features."""
    assert record.label is not None
    return record._replace(payload=record.payload + example.encode({name: record.label}))


def _example_of_sample(record: SourceRecord) -> bytes:
    sample = tar_sample(record.payload)
    if _KEY in sample.members:
        fact = f"Sample {sample.key!r} has a member with the extension {_KEY!r}."
        raise ExampleError(fact, "The feature of that name holds the sample's key.", "rename the member.")
    return example.encode({_KEY: sample.key.encode("utf-8", "surrogateescape"), **sample.members})


def _example_of_payload(name: str, record: SourceRecord) -> bytes:
    label: Mapping[str, FeatureInput] = {} if record.label is None else {"label": record.label}
    return example.encode({name: record.payload, **label})


def _sample_of_payload(record: SourceRecord) -> TarSample:
    label = {} if record.label is None else {"cls": str(record.label).encode()}
    return TarSample(record.key or _numbered(record), {record.suffix or "bin": record.payload, **label})


def _sample_of_example(record: SourceRecord) -> TarSample:
    key = _numbered(record)
    members: dict[str, bytes] = {}
    for name, values in sorted(_features(record).items()):  # protobuf's own order of a map is not defined
        if name == _KEY:
            key = _one_bytes(record, name, values).decode("utf-8", "surrogateescape")
            continue
        extension, content = _member(record, name, values)
        if extension in members:
            fact = f"Two features of record {record.number} would both become a member .{extension}."
            conflict = "Names in tar shards have no upper case and no slash."
            raise ExampleError(fact, conflict, "rename the features, or store the records whole: --payloads opaque.")
        members[extension] = content
    return TarSample(key, members)


def _features(record: SourceRecord) -> dict[str, Feature]:
    try:
        features = example.decode(record.payload)
    except ExampleError as error:
        raise ExampleError(error.fact, error.conflict, "store such records whole: --payloads opaque.") from error
    if features.keys() <= {_KEY}:
        fact = f"Record {record.number} is a tf.train.Example without features."
        conflict = "A sample of a tar shard needs a member."
        raise ExampleError(fact, conflict, "store such records whole: --payloads opaque.")
    return features


def _member(record: SourceRecord, name: str, values: Feature) -> tuple[str, bytes]:
    extension = name.lower().replace("/", ".")
    if isinstance(values, list):
        return extension, _one_bytes(record, name, values)
    if values.dtype == np.int64 and values.size == 1:
        return extension, str(values[0]).encode()
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return f"{extension}.npy", file.getvalue()


def _one_bytes(record: SourceRecord, name: str, values: Feature) -> bytes:
    if not isinstance(values, list) or len(values) != 1:
        fact = f"Feature {name!r} of record {record.number} has {len(values)} values."
        raise ExampleError(fact, "A member of a tar shard holds one.", "store the records whole: --payloads opaque.")
    return values[0]


def _numbered(record: SourceRecord) -> str:
    return f"{record.number:08d}"


def check_free(folder: Path, name: str) -> None:
    for suffix in SUFFIXES.values():
        there = sorted(folder.glob(f"{glob.escape(name)}-?????-of-?????{suffix}"))
        if there:
            fact = f"{folder} already holds {there[0].name}."
            conflict = f"A second set of the name {name!r} would overwrite it or be mixed up with it."
            raise PlanError(fact, conflict, "remove the old files, or choose another folder or name.")


@contextlib.contextmanager
def open_shard(path: Path, target: RecordFormat, encode: Encoder) -> Iterator[Callable[[SourceRecord], int]]:
    """Write one file, which gets its name when the block ends well.

    Yields a function that appends a record in the target's form, and returns the digest of what was appended.
    """
    multipart = target.multipart if isinstance(target, RecordIOFormat) else "dmlc"
    samples = TarWriter(path) if target.name == "tar" else None
    payloads = RecordIOWriter(path, multipart) if target.name == "recordio" else TFRecordWriter(path)
    last_key, parts = "", SampleParts()

    def write(record: SourceRecord) -> int:
        nonlocal last_key
        content = encode(record)
        if isinstance(content, bytes):
            payloads.write(content)
        elif samples is not None:
            is_rest = parts.rest_of(content.key, content.members, record.number) is not None
            if is_rest or content.key == last_key:  # readers would take both for one sample
                content = content._replace(key=f"{content.key}-{record.number:08d}")
            samples.write(content.key, content.members)
            last_key = content.key
        return digest(content)

    with samples or payloads:
        yield write
