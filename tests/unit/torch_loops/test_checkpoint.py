"""`hvd.Checkpoint`: which weights it refuses, under any keyword, and what it says then."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

NOT_FINITE = """
import contextlib, io, json, logging, sys, torch, hvdtrain.torch as hvd
from hvdtrain.cli.main import main
from hvdtrain.errors import HvdtrainError

class Best:  # of early stopping: no weights
    def state_dict(self): return {"best": torch.tensor(float("nan"))}
    def load_state_dict(self, state): pass

def made(infinite=True):
    model = torch.nn.Linear(3, 3)
    model.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(3) if infinite else
                          torch.zeros(3, 3))
    model.later = torch.nn.LazyLinear(1, bias=False, dtype=torch.bfloat16)  # whose weight a first pass makes
    return model

def tried(call):
    try:
        call()
    except HvdtrainError as error:
        return str(error)
    return "saved"

hvd.init()
said = {}
for name in ("model", "net"):
    model, other, folder = made(), torch.nn.Linear(1, 1), f"{sys.argv[1]}/{name}"
    checkpoint = hvd.Checkpoint(folder, keep=1, best=Best(), other=other, **{name: model})
    model.later(torch.ones(1, 2).bfloat16())
    said[name] = [tried(lambda: checkpoint.save(1, wait=True))]
    spoilt = ("nan", model.weight), ("inf", model.weight), ("nan", model.mask), ("inf", model.later.weight)
    for value, tensor in spoilt:
        kept = tensor.detach().clone()
        with torch.no_grad():
            tensor.fill_(float(value))
            said[name].append(tried(lambda: checkpoint.save(2, wait=True)))
            tensor.copy_(kept)
    again = made(infinite=False)  # its mask comes with the checkpoint
    checkpoint = hvd.Checkpoint(folder, keep=1, best=Best(), other=other, **{name: again})
    said[name].append([checkpoint.restore().step, torch.equal(again.mask, model.mask)])
    said[name].append(tried(lambda: checkpoint.save(3, wait=True)))
steps = hvd.Checkpoint(sys.argv[1] + "/steps", keep=9, best=Best())
said["steps"] = [tried(lambda step=step: steps.save(step, wait=True)) for step in (torch.tensor(4), -1, 5.0, "6", 7)]
said["steps"].append(sorted(path.name for path in steps._store.paths()))
logged = logging.Handler()
warned = []
logged.emit = lambda record: warned.append(record.getMessage())
logging.getLogger("hvdtrain").addHandler(logged)
steps.save(5, wait=True)
said["back"] = [list(warned), sorted(path.name for path in steps._store.paths())]
def saved_beside(**objects):
    checkpoint = hvd.Checkpoint(sys.argv[1] + "/steps", keep=9, **objects)
    return tried(lambda: checkpoint.save(checkpoint.restore().step, wait=True))

said["two"] = [saved_beside(best=Best())]
network = hvd.Checkpoint(sys.argv[1] + "/network", net=torch.nn.Linear(1, 1), best=Best())
network.save(1, wait=True)
elsewhere = hvd.Checkpoint(sys.argv[1] + "/elsewhere", net=Best())
elsewhere.save(1, wait=True)
network.save(1, wait=True)
other = hvd.Checkpoint(sys.argv[1] + "/network", net=torch.nn.Linear(1, 1), best=Best())
other.restore()
said["two"] += [tried(lambda: other.save(2, wait=True)), tried(lambda: network.save(2, wait=True))]
main(["train", "--task", "digits", "--framework", "torch", "--max-steps", "1", "--output-dir", sys.argv[1] + "/task"])
said["task"] = [tried(hvd.Checkpoint(sys.argv[1] + "/task/checkpoints", best=Best()).restore)]
steps.save(7, wait=True)
told = io.StringIO()
with contextlib.redirect_stderr(told):
    said["evaluated"] = [main(["evaluate", sys.argv[1] + "/steps/step_00000007"]), told.getvalue()]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    command = [sys.executable, "-c", NOT_FINITE, str(tmp_path_factory.mktemp("not_finite"))]
    printed = subprocess.run(command, check=True, timeout=240, stdout=subprocess.PIPE).stdout
    found: dict[str, list[Any]] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.parametrize(("keyword", "before"), [("model", ""), ("net", "net/")])
def test_modules_must_be_finite_whatever_their_keyword(said: dict[str, list[Any]], keyword: str, before: str) -> None:
    """Except for a tensor that holds infinity from the start: in the program, or in what it has restored."""
    first, *refused, restored, last = said[keyword]
    assert (first, restored, last) == ("saved", [1, True], "saved")
    names = ("weight", "weight", "mask", "later.weight")
    facts = [f"After step 2 weights are NaN or infinite: {before}{name}." for name in names]
    assert [text.partition(". ")[0] + "." for text in refused] == facts


def test_what_is_said_names_no_options_that_a_loop_does_not_have(said: dict[str, list[Any]]) -> None:
    hint = said["net"][1].partition("HINT: ")[2]
    assert hint.startswith("lower the learning rate, or clip gradients; restore()")
    assert "--" not in hint


def test_a_step_is_a_whole_number(said: dict[str, list[Any]]) -> None:
    whole, *wrong, last, names = said["steps"]
    assert [whole, last] == ["saved", "saved"]
    assert names == ["step_00000004", "step_00000007"]
    for step, sentence in zip(("-1", "5.0", "'6'"), wrong, strict=True):
        assert sentence.startswith(f"save() was given the step {step}."), sentence


def test_who_goes_back_learns_that_later_checkpoints_are_removed(said: dict[str, list[Any]]) -> None:
    (warning,), names = said["back"]
    assert warning.startswith("save(5) was called after save(7).")
    assert names == ["step_00000004", "step_00000005"]


def test_two_objects_do_not_save_other_states_in_one_folder(said: dict[str, list[Any]]) -> None:
    same, other, first = said["two"]
    assert (same, first) == ("saved", "saved")
    assert "save different objects in" in other, other


def test_a_checkpoint_of_a_task_is_refused(said: dict[str, list[Any]]) -> None:
    assert "that no hvd.Checkpoint has written" in said["task"][0], said["task"]


def test_hvdtrain_cannot_build_the_model_of_a_loop(said: dict[str, list[Any]]) -> None:
    code, told = said["evaluated"]
    assert code == 2
    assert told.startswith("hvdtrain: This checkpoint was saved by hvd.Checkpoint."), told
