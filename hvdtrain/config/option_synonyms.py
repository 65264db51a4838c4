"""Options of other programs, and which option of ours means the same. They are for error messages and not accepted."""

import difflib
from collections.abc import Iterable
from functools import cache
from pathlib import Path


@cache
def tables() -> dict[str, dict[str, str]]:
    """ "options": an option of ours → words of others, "elsewhere": an answer → words of others; from the YAML file."""
    import yaml  # only a refusal needs it

    tables: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return tables


def _by_word(table: str) -> dict[str, str]:
    return {word: answer for answer, words in tables()[table].items() for word in words.split()}


def near_options(name: str, options: Iterable[str]) -> str:
    """The end of a HINT for an option that is not there: which of ours is meant, three at most; "" where none is near.

    Args:
        name: as it was written, with or without leading dashes.
        options: those that there are, as "--data.dir".
    """
    bare = name.lstrip("-").replace("_", "-").lower()
    meant, answered = _by_word("options"), _by_word("elsewhere")
    if bare in meant:
        return f"did you mean {meant[bare]}?"
    if bare in answered:
        return f"{answered[bare]}."
    known = {option.lstrip("-"): option for option in options}
    exact = [name for name in (bare, bare.replace("-", "_"), f"data.{bare}") if name in known]  # without its group
    near = exact[:1] or difflib.get_close_matches(bare, known, 3, 0.7)
    if not near:  # a synonym with a slip
        words = difflib.get_close_matches(bare, meant, 1, 0.8)
        return f"did you mean {meant[words[0]]}?" if words else ""
    return f"did you mean {_listed([known[option] for option in near])}?"


def _listed(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
