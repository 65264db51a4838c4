"""torch's compiler is imported by what compiles, and optimizers do the same with it and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DETERMINISTIC = """
import sys
import torch
from hvdtrain.adapters.torch.compiler_import import use_deterministic_algorithms

use_deterministic_algorithms(True)
assert "torch._dynamo" not in sys.modules and "torch._inductor" not in sys.modules
assert torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
import torch._inductor.config
assert torch._inductor.config.deterministic
use_deterministic_algorithms(False)
assert not torch._inductor.config.deterministic and not torch.are_deterministic_algorithms_enabled()
"""

SCRIPT = """
import sys
import torch
from torch import nn
from hvdtrain.adapters.torch.compiler_import import spare_compiler_import

KINDS = ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD"]

def trained(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(7, 5)).square().mean()
        loss.backward()
        optimizer.step()
        assert torch.is_grad_enabled()
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.step(lambda: loss) is loss
    return [p.detach().numpy().tobytes() for p in model.parameters()]

spare_compiler_import()
without = {name: trained(name) for name in KINDS}
print("IMPORTED" if "torch._dynamo" in sys.modules else "SPARED")
import torch._dynamo
kept = torch.optim.Optimizer.zero_grad.__wrapped__
before = kept.__dynamo_disable
print("EQUAL" if without == {name: trained(name) for name in KINDS} else "DIFFERENT")
print("TORCH'S OWN AGAIN" if kept.__dynamo_disable is not before else "STILL OURS")
"""


def test_the_compiler_is_imported_by_who_needs_it_only_and_changes_no_number() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines() == ["SPARED", "EQUAL", "TORCH'S OWN AGAIN"], done.stderr


def test_deterministic_algorithms_do_not_import_it_and_are_known_to_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DETERMINISTIC], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_training_imports_neither_it_nor_sympy(tmp_path: Path) -> None:
    """Each takes a second. torch imports SymPy where a backward pass begins from a gradient that it is given."""
    program = (
        "import sys; from hvdtrain.cli import main; main(sys.argv[1:]); "
        "print({'torch._dynamo', 'sympy'} & sys.modules.keys())"
    )
    options = ["--task", "digits", "--deterministic", "true", "--max-steps", "1", "--output-dir", str(tmp_path / "run")]
    argv = [sys.executable, "-c", program, *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr
