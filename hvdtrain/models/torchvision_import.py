"""Imports torchvision where its compiled operators do not fit the installed PyTorch, and without torch's compiler.

PyPI's torchvision is built for CUDA. Beside a CPU build of PyTorch its extension cannot be loaded, the operators
`nms` and `qnms` are never declared, and `import torchvision` ends with "operator torchvision::nms does not exist",
because it registers shape functions for them. Models, transforms and data sets need neither. So only if the
extension cannot be loaded, the two schemas are declared first; calling such an operator still fails, loudly.

Whoever imports this module makes every later `import torchvision` do that; torch is imported no sooner than then.
"""

import ctypes
import importlib
import importlib.util
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# As in torchvision/csrc/ops/nms.cpp and csrc/ops/quantized/cpu/qnms_kernel.cpp.
_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))

_COMPILER = "torch._dynamo.utils"

_SILENCE_SECONDS = 20.0  # after which a download from a server that says nothing is given up

# torch.library removes its declarations with this object, so the object must exist as long as the process.
_declared: list[Any] = []


class _DeclareFirst:
    """Finds torchvision where it is, and has the schemas declared when it is imported, not when it is looked for."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        others = (finder for finder in sys.meta_path if finder is not _DeclareFirst)
        spec = next(filter(None, (finder.find_spec(name, None) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = partial(_import_declared, spec.loader.exec_module)
        return spec


sys.meta_path.insert(0, _DeclareFirst)


@dataclass(frozen=True)
class DecodeElsewhere:
    """A task's `decode` for another process, which unpickles it: this module is imported there before the task's."""

    decode: Callable[[Any], dict[str, Any]]

    @property
    def __wrapped__(self) -> Callable[[Any], dict[str, Any]]:
        return self.decode

    def __call__(self, records: Any) -> dict[str, Any]:
        return self.decode(records)


def import_torchvision() -> ModuleType:
    """`import torchvision` that also works beside a CPU build of PyTorch. May be called any number of times.

    Raises `ModuleNotFoundError`: torchvision is not installed.
    """
    return importlib.import_module("torchvision")


def download(name: str, folder: str) -> None:
    """Download a data set into `folder`, check the MD5 that torchvision knows, and unpack; for a process of its own."""
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    getattr(import_torchvision().datasets, name)(folder, download=True)


def _import_declared(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    if not _declared and not extension_loads():
        import torch

        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in _SCHEMAS:
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    with _compiler_imported_later():
        execute(module)


@contextmanager
def _compiler_imported_later() -> Iterator[None]:
    """torchvision.ops imports torch's compiler, a second and 70 MB, to ask it one thing when operators are called."""
    if _COMPILER in sys.modules:
        yield
        return
    stand_in = sys.modules[_COMPILER] = _Later(_COMPILER)
    try:
        yield
    finally:
        if sys.modules.get(_COMPILER) is stand_in:
            del sys.modules[_COMPILER]


class _Later(ModuleType):
    """A module that is imported when it is used."""

    def is_compile_supported(self, device_type: str) -> bool:
        return bool(self._imported().is_compile_supported(device_type))

    def __getattr__(self, name: str) -> Any:
        """Import the module: another thread may need the compiler now, or another torchvision more of it."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._imported(), name)

    def _imported(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            sys.modules.pop(self.__name__, None)
        return importlib.import_module(self.__name__)


def extension_loads() -> bool:
    """Whether torchvision's compiled operators can be loaded into this process; True once they are.

    Raises `ModuleNotFoundError`: torchvision is not installed.
    """
    import torch

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
