"""The names of `horovod.tensorflow.compression`."""

from horovod.tensorflow import compression as _horovod

Compression = _horovod.Compression
"""`Compression.none` and `Compression.fp16`: what travels of gradients."""

Compressor, NoneCompressor, FP16Compressor = _horovod.Compressor, _horovod.NoneCompressor, _horovod.FP16Compressor
