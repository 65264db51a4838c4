"""How an option of a training is declared: one field of a dataclass, with its type, default, group, range and help.

    lr_power: float | None = option(None, Group.LEARNING_RATE, must=POSITIVE, example="2").help(
        "power of polynomial (default: 2)."
    )

The command line, YAML files, pages of help and the checks all follow from the field. If the option excludes or needs
another one, that is a row in `hvdtrain.config.conflicts`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

from hvdtrain.config.conflicts import flag_of, refuse_conflicts
from hvdtrain.errors import UsageError


class Group(Enum):
    """The headings of the help, in its order."""

    TASK = "Task and model"
    DATA = "Data"
    LENGTH = "Length and batches"
    OPTIMIZER = "Optimizer"
    LEARNING_RATE = "Learning rate"
    PRECISION = "Precision, memory and speed"
    GRADIENTS = "Gradients and communication"
    STAGES = "Model in stages"
    VALIDATION = "Validation and stopping"
    CHECKPOINTS = "Checkpoints and resume"
    METRICS = "Metrics"
    REPEATABILITY = "Repeatability"
    OUTPUT = "Output and help"


class Range(NamedTuple):
    """What a number must be, in words and as a test."""

    words: str
    holds: Callable[[float], bool]


AT_LEAST_ONE: Final = Range("1 or more", lambda value: 1 <= value < float("inf"))
NOT_NEGATIVE: Final = Range("0 or a positive number", lambda value: 0 <= value < float("inf"))
FLOAT32: Final = Range("a positive number that float32 holds", lambda value: 1.2e-38 < value < 3.4e38)
SECONDS: Final = Range("from 1 to 1e9 seconds", lambda value: 1 <= value <= 1e9)
THREADS: Final = Range("from 1 to 4096", lambda value: 1 <= value <= 4096)
POSITIVE: Final = Range("a positive number", lambda value: 0 < value < float("inf"))
SHARE: Final = Range("a share from 0 to below 1", lambda value: 0 <= value < 1)


@dataclass(frozen=True)
class Declaration:
    """What the field of an option says besides its name and type."""

    default: Any  # the value where the option is not given; a class or function makes it
    group: Group  # the heading of the help under which it stands
    metavar: str = ""  # what the option takes, in the help; "": as its type says
    must: Range | None = None  # the range of a number
    example: str = ""  # a number in that range; "": the default is one
    about: str = ""  # the help

    def help(self, text: str) -> Any:
        """The dataclass field with this declaration and a text of help, which may be wrapped and indented."""
        about = " ".join(text.split())
        default: dict[str, Any] = {"default_factory" if callable(self.default) else "default": self.default}
        return field(**default, metadata={"declaration": replace(self, about=about)})


option = Declaration


@dataclass(frozen=True)
class Options:
    """Some options, checked: every number is in its range, and no option excludes another one."""

    prefix: ClassVar[str] = ""
    """Begins the names of these options, as in data.dir."""

    def __post_init__(self) -> None:
        for name, declared in declarations(type(self)):
            _require_range(self.prefix + name, getattr(self, name), declared)
        refuse_conflicts(flat(self, self.prefix), default_values(type(self), self.prefix))


def declarations(kind: type[Any]) -> Iterator[tuple[str, Declaration]]:
    """The options of a class by name, without those of the groups inside it."""
    for member in fields(kind):
        if (declared := member.metadata.get("declaration")) is not None:
            yield member.name, declared


def flat(options: Any, prefix: str = "") -> dict[str, Any]:
    """The values by name, "data.dir" for one of a group."""
    return _flat({member.name: getattr(options, member.name) for member in fields(options)}, prefix)


def default_values(kind: type[Any], prefix: str = "") -> Mapping[str, Any]:
    """As `flat`, of options of which none is given."""
    defaults = {
        member.name: member.default if member.default_factory is MISSING else member.default_factory()
        for member in fields(kind)
    }
    return _flat(defaults, prefix)


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    below: dict[str, Any] = {}
    for name, value in values.items():
        below |= flat(value, f"{prefix}{name}.") if is_dataclass(value) else {prefix + name: value}
    return below


def changed_options(options: Any, kind: type[Any]) -> dict[str, Any]:
    """Options of a class whose value is not the default: name ("parallel.stages" for one in a group) → value."""
    usual = default_values(kind)
    return {name: value for name in usual if (value := attrgetter(name)(options)) != usual[name]}


def _require_range(name: str, value: Any, declared: Declaration) -> None:
    if declared.must is not None and value is not None and not declared.must.holds(value):
        example = declared.example or f"{declared.default:g}"
        flag = flag_of(name)
        raise UsageError(f"{flag} is {value}.", f"It must be {declared.must.words}.", f"try {flag} {example}.")
