"""The same training in TensorFlow twice, and one that is interrupted, with the same bits."""

from __future__ import annotations

from pathlib import Path

from support.commands import Forker


def test_a_deterministic_training_has_the_same_bits_again_and_resumed(keras_forker: Forker, tmp_path: Path) -> None:
    facts = keras_forker.facts_of("keras_repeated.py", tmp_path)
    whole, again, resumed = facts["hashes"]
    assert facts["sums_of_three"]  # what TensorFlow would add up in the order in which the terms are ready
    assert len(set(whole)) == len(whole)
    assert whole == again == resumed
