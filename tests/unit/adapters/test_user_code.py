"""What user code may do while it trains, in one process: each row of docs/user-code.md, in both frameworks.

Rows about ranks are in tests/parallel/test_user_code.py, those about the mode of layers in test_torch_user_code.py.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import Forker
from support.numpy_training import Data

SCRIPT = str(Path(__file__).parents[2] / "support" / "scripts" / "user_code_rows.py")
FRAMEWORKS = ["torch", "tensorflow"]
REFUSED = {
    "torch": {
        "unfrozen, unknown to the optimizer": "User code has unfrozen '0.bias', which the optimizer does not train.",
        "module replaced": "User code has added, removed or replaced '3.bias', '3.weight' in the model",
        "module added": "User code has added, removed or replaced '4.bias', '4.weight' in the model",
        "module removed": "User code has added, removed or replaced '3.bias', '3.weight'",
        "buffer added": "User code has added, removed or replaced 'count'",
        "dtype of the model": "User code has changed the dtype, the shape, the device or the memory of ",
        "learning rate": "The optimizer's learning rate is 1.0; the last step has set it to 0.1.",
        "group added": "User code has changed the parameter groups of the optimizer",
        "group removed": "User code has changed the parameter groups of the optimizer",
        "default dtype": "torch.get_default_dtype() is torch.float64; when training began it was torch.float32.",
        "default device": "torch.get_default_device() is meta",
        "determinism": "torch.are_deterministic_algorithms_enabled() is True",
        "matmul precision": "torch.get_float32_matmul_precision() is medium",
        "grad mode": "torch.is_grad_enabled() is False",
        "inference mode": "torch.is_",  # it switches gradients off too
    },
    "tensorflow": {
        "unfrozen": "User code has changed `trainable` of 'first/bias', 'first/kernel' during training.",
        "frozen": "User code has changed `trainable` of 'last/bias', 'last/kernel' during training.",
        "weight added": "User code has added, removed or replaced 'last/added' in the model during training.",
        "learning rate": "The optimizer's learning rate is 1.0; the last step has set it to 0.1.",
        "number of the optimizer": "User code has changed 'beta_1' of the optimizer Adam.",
        "floatx": "keras.config.floatx() is float64; when training began it was float32.",
        "dtype policy": "keras.config.dtype_policy() is mixed_bfloat16",
        "image data format": "keras.config.image_data_format() is channels_first",
        "eager functions": "tf.config.functions_run_eagerly() is True",
        "TF32": "TensorFlow's use of TF32 is True",
    },
}
ALLOWED = ["working directory", "environment", "generators"]


@pytest.fixture(scope="module")
def facts_of(data: Data, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    """One process for each framework."""

    @functools.cache
    def facts(framework: str) -> Any:
        forker: Forker = request.getfixturevalue("forker" if framework == "torch" else "keras_forker")
        folder = tmp_path_factory.mktemp(framework)
        ended = forker.run_python([SCRIPT, framework, str(data.folder)], folder)
        assert ended.code == 0, ended
        return json.loads(ended.stdout.splitlines()[-1])

    return facts


@pytest.mark.parametrize(("framework", "row"), [(f, row) for f in FRAMEWORKS for row in REFUSED[f]])
def test_what_must_not_change_is_refused_when_the_next_epoch_begins(framework: str, row: str, facts_of: Any) -> None:
    told = facts_of(framework)["refused"]
    assert told.keys() == REFUSED[framework].keys()
    assert told[row].startswith(REFUSED[framework][row])


@pytest.mark.parametrize("row", ALLOWED)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_has_no_influence_leaves_the_weights_as_they_are(framework: str, row: str, facts_of: Any) -> None:
    weights = facts_of(framework)["allowed"]
    assert weights.keys() == {"nothing", *ALLOWED}
    assert weights[row] == weights["nothing"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_handler_of_the_users_own_hides_no_request_to_stop(framework: str, facts_of: Any) -> None:
    assert facts_of(framework)["signals"] == {"heard": [15], "status": "stopped", "checkpoint": True}


def test_what_a_torch_step_cannot_do_is_refused_in_that_step(facts_of: Any) -> None:
    assert facts_of("torch")["in_step"] == {
        "grad mode": "torch.is_grad_enabled() is False in a training step.",
        "unfrozen": "User code has unfrozen '0.weight' within an epoch.",
        "group added": "User code has changed the parameter groups of the optimizer during training.",
        "learning rate": "The optimizer's learning rate is 1.0; the last step has set it to 0.1.",
        "rates of the schedule": "",
    }


def test_hooks_numbers_of_groups_gradients_and_threads_are_the_users_in_torch(facts_of: Any) -> None:
    facts = facts_of("torch")
    assert facts["hooks"] == ["module", "gradient", "optimizer"]
    assert facts["numbers_of_groups"]
    assert facts["gradients_left"]
    wanted, after = facts["threads"]
    assert after == wanted


def test_what_tensorflow_refuses_itself_or_cannot_see(facts_of: Any) -> None:
    facts = facts_of("tensorflow")
    assert "cannot be modified after initialization" in facts["threads"]
    without, changed = facts["attribute_of_a_layer"]
    assert without == changed


def test_measures_that_are_no_tensors_of_tensorflow_or_have_no_names_are_refused(facts_of: Any) -> None:
    assert facts_of("tensorflow")["measures"] == [
        "The task's measure() returned 'a' as an object of type numpy.ndarray.",
        "The task's measure() returned 'a' as an object of type list.",
        "The task's measure() returned a value under the name 3, an object of type int.",
    ]
