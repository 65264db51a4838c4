"""A command line as hyperparameters, and so back to the same command line in the container."""

from __future__ import annotations

from collections.abc import Sequence

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.spec import HyperparameterValue


def hyperparameters_of(words: Sequence[str]) -> dict[str, HyperparameterValue]:
    """`--epochs 3 --debug --data.dir=x` as {"epochs": 3, "debug": True, "data.dir": "x"}.

    Values become numbers where that leaves their text as it is, so that workers get the same words again; a flag
    without a value becomes True, and workers get `--debug True`.

    Raises:
        UsageError: a word that belongs to no flag, or a flag that is given twice.
    """
    found: dict[str, HyperparameterValue] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") or flag == "--":
            raise UsageError(
                f"The command has the word {word[:80]!r}.",
                "SageMaker carries flags with one value each, as hyperparameters.",
                "write --name value.",
            )
        name = flag[2:]
        if name.replace("_", "-") in {other.replace("_", "-") for other in found}:
            raise UsageError(f"{flag} is given twice.", "A hyperparameter has one value.", "leave one out.")
        if equals:
            found[name] = _typed(value)
        elif left and not left[0].startswith("--"):
            found[name] = _typed(left.pop(0))
        else:
            found[name] = True
    return found


def _typed(text: str) -> HyperparameterValue:
    words = {"True": True, "False": False}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            if str(kind(text)) == text and text not in ("nan", "inf", "-inf"):
                return kind(text)
        except ValueError:
            continue
    return text
