"""Runs of the digits in one torch process, for tests of what `hvdtrain` leaves and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.digits import open_split
from hvdtrain.user_cache import user_cache
from support.commands import Ended

Command = Callable[..., list[Ended]]


def digits_pattern(files: str) -> str:
    """Where files of the digits are, e.g. "validation-*"."""
    catalog = open_split(DataAccess(None, user_cache() / "data"), "validation")
    return str(Path(catalog.files[0].path).with_name(files))


SHORT = ["--max-steps", "2", "--global-batch-size", "32", "--progress", "lines"]

OWN_TASKS = """
from pathlib import Path

import torch
from hvdtrain.tasks.torch import TorchDigits
from safetensors.torch import save_file

class Five(TorchDigits):
    # digits modulo five: another head; at the end it says which weights the model has that it built

    def __init__(self):
        super().__init__()
        self.built = []

    def callbacks(self):
        return [self.tell]

    def tell(self, event):
        if type(event).__name__ == "RunEnded":
            states = [model.state_dict() for model in self.built]
            save_file({f"{i}/{name}": s[name] for i, s in enumerate(states) for name in s}, "built.safetensors")

    def decode(self, records):
        features = super().decode(records)
        return {**features, "label": features["label"] % 5}

    def build_model(self):
        model = super().build_model()
        model.logits = torch.nn.Linear(model.logits.in_features, 5)
        self.built.append(model)
        return model

class Told(TorchDigits):
    # writes down the names of all events, and fails by itself at the second one logged if it is asked to

    def __init__(self, fails: bool = False):
        super().__init__()
        self.fails, self.logged = fails, 0

    def callbacks(self):
        return [self.note]

    def note(self, event):
        name = type(event).__name__
        with open("told", "a") as file:
            print(name, file=file)
        self.logged += name == "Logged"
        if self.fails and name == "Logged" and self.logged == 2:
            raise ValueError("a callback's own error")

class FailsAtTheEnd(Told):
    def note(self, event):
        super().note(event)
        if type(event).__name__ == "RunEnded":
            raise ValueError("a callback's error at the end")

class CannotOpenASink(Told):
    def callbacks(self):
        from hvdtrain.run.sinks import sink_registry
        sink_registry.SINKS = (*sink_registry.SINKS, self.open_none)
        return super().callbacks()

    def open_none(self, context, stack):
        raise ValueError("a sink's own error")

class CountsCheckpoints(TorchDigits):
    def callbacks(self):
        return [self.count]

    def count(self, event):
        if type(event).__name__ == "RunStarted":
            import gc
            from hvdtrain.checkpoints.format import Checkpoint
            print("in memory:", sum(isinstance(kept, Checkpoint) for kept in gc.get_objects()), flush=True)

class NoList(TorchDigits):
    def callbacks(self):
        return None

class CannotRun(TorchDigits):
    def build_model(self):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(65, 10))

class Infinite(TorchDigits):
    def measure(self, model, batch):
        return {"loss": super().measure(model, batch)["loss"] + torch.inf}

class CannotGoBack(TorchDigits):
    def measure(self, model, batch):
        return {"loss": super().measure(model, batch)["loss"].detach()}

class Other(TorchDigits):
    pass

class Failing(TorchDigits):
    def decode(self, records):
        raise RuntimeError("cannot decode")

class Crashing(TorchDigits):
    def decode(self, records):
        if Path("crash").exists():
            raise RuntimeError("cannot decode now")
        return super().decode(records)
"""


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)
