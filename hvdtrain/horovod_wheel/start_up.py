"""Runs at each start of the Python of an environment that `make setup` has made: `environment` copies it there.

It costs one small import, so it imports nothing at its top that Python has not loaded already. Two imports of any
script get help, by code of hvdtrain that is loaded only then:

- torchvision: its operators are declared where its extension does not fit the installed torch.
- horovod.torch, horovod.tensorflow: one HINT where a launcher has started several processes that nothing connects.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_TORCHVISION = "hvdtrain.models.torchvision_import"
_UNCONNECTED = "hvdtrain.comm.unconnected"
_HOROVOD = ("horovod.torch", "horovod.tensorflow")
# Whoever imports one of these connects the processes, or refuses by itself.
_CONNECTS = {"hvdtrain.comm", "hvdtrain.torch", "hvdtrain.tensorflow", "hvdtrain.keras"}


class FirstLook:
    """Is asked before all other finders; leaves every other module to them."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        if name == "torchvision" and _TORCHVISION not in sys.modules:
            helper = _TORCHVISION
        elif name in _HOROVOD and _CONNECTS.isdisjoint(sys.modules):
            helper = _UNCONNECTED
        else:
            return None
        from importlib import import_module
        from importlib.util import find_spec

        if find_spec("hvdtrain") is None:
            return None  # it was uninstalled, and this file is left
        module = import_module(helper)
        if helper == _TORCHVISION:
            return find_spec(name)  # by the finder that the module of hvdtrain puts before all others
        module.tell_if_unconnected()
        return None


sys.meta_path.insert(0, FirstLook)
