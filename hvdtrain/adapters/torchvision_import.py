"""Imports torchvision where its compiled operators do not fit the installed PyTorch.

PyPI's torchvision is built for CUDA. Beside a CPU build of PyTorch its extension cannot be loaded, the operators
`nms` and `qnms` are never declared, and `import torchvision` ends with "operator torchvision::nms does not exist",
because it registers shape functions for them. Models, transforms and data sets need neither. So only if the
extension cannot be loaded, the two schemas are declared here first; calling such an operator still fails, loudly.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import torch

# As in torchvision/csrc/ops/nms.cpp and csrc/ops/quantized/cpu/qnms_kernel.cpp.
_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))

# torch.library undoes its declarations when the object goes away, so it has to live as long as the process.
_declared: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """`import torchvision` that also works beside a CPU build of PyTorch. May be called any number of times.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    if not _declared and not extension_loads():
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in _SCHEMAS:
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    return importlib.import_module("torchvision")


def extension_loads() -> bool:
    """Whether torchvision's compiled operators can be loaded into this process; True once they are.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "torchvision is not installed: pip install 'hvdtrain[torchvision]'", name="torchvision"
        )
    try:
        for library in sorted(Path(spec.origin).parent.glob("_C*.so")):
            ctypes.CDLL(str(library))
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")
