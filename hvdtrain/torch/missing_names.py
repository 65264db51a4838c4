"""The error for a name that a look-alike does not have."""

from collections.abc import Iterable

from hvdtrain.errors import UsageError, did_you_mean


class MissingNameError(UsageError, AttributeError):
    """A module has no such name."""


def missing_name(module: str, name: str, names: Iterable[str], instead: str = "") -> AttributeError:
    """The error for `module.name`. Args: `instead`: one more way out. Names with underscores get Python's own error."""
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    hint = did_you_mean(name, names)
    return MissingNameError(
        f"{module} has no {name}.",
        "The program would call something that does not exist.",
        f"{hint[:-1]}; {instead}." if instead else hint,
    )
