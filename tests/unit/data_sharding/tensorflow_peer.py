"""Run in a process of its own: read what data_sharding wrote with TensorFlow, and write the same with TensorFlow.

Argument: a folder with `ours.tfrecord`, `examples.tfrecord` and `payloads.json`. Results are left beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tensorflow as tf


def main(folder: Path) -> None:
    payloads = [bytes.fromhex(payload) for payload in json.loads((folder / "payloads.json").read_text())]
    with tf.io.TFRecordWriter(str(folder / "theirs.tfrecord")) as writer:
        for payload in payloads:
            writer.write(payload)
    with tf.io.TFRecordWriter(str(folder / "gzipped.tfrecord"), "GZIP") as writer:
        writer.write(payloads[0])
    read = [record.numpy().hex() for record in tf.data.TFRecordDataset(str(folder / "ours.tfrecord"))]
    (folder / "read.json").write_text(json.dumps(read))

    parsed = []
    with tf.io.TFRecordWriter(str(folder / "reserialized.tfrecord")) as writer:
        for record in tf.data.TFRecordDataset(str(folder / "examples.tfrecord")):
            example = tf.train.Example.FromString(record.numpy())
            parsed.append({name: _plain(feature) for name, feature in example.features.feature.items()})
            writer.write(example.SerializeToString(deterministic=True))
    (folder / "parsed.json").write_text(json.dumps(parsed))


def _plain(feature: tf.train.Feature) -> list[object]:
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    return [kind, [value.hex() for value in values] if kind == "bytes_list" else values]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
