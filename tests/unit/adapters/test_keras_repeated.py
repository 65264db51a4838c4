"""The same training in TensorFlow twice, and one that is interrupted, with the same bits."""

from __future__ import annotations

import json
from pathlib import Path

from support.commands import Forker

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "keras_repeated.py"


def test_a_deterministic_training_has_the_same_bits_again_and_resumed(keras_forker: Forker, tmp_path: Path) -> None:
    done = keras_forker.run_python([str(SCRIPT)], tmp_path)
    assert done.code == 0, done
    facts = json.loads(done.stdout.splitlines()[-1])
    whole, again, resumed = facts["hashes"]
    assert facts["sums_of_three"]  # what TensorFlow would add up in the order in which the terms are ready
    assert len(set(whole)) == len(whole)
    assert whole == again == resumed
