"""mosaicml-streaming without its picture data sets, whose torchvision does not fit a CPU build of torch."""

import sys
import types

sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")

import streaming  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

streaming.base.util.clean_stale_shared_memory()
