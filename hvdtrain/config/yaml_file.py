"""A training config as YAML: written, and read back by `--config`."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import yaml

from hvdtrain.config.option_help import groups, keys
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError

NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
"""What jsonargparse reads as a number, which is more than PyYAML does (1e3)."""

_WIDTH: Final = 100


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The keys of a config file. Raises `UsageError` where it cannot be read, or is not a mapping of plain YAML."""
    try:
        content = yaml.load(path.read_text(), _Loader)
        json.dumps(content, default=str)
    except OSError as error:
        raise UsageError(
            f"The config file {path} cannot be read: {error.strerror}.", "It was given as --config.", "check the path."
        ) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # json.dumps: a value that contains itself
        raise UsageError(
            f"The config file {path} is not plain YAML: {error}.",
            "Only plain values, lists and mappings are read; nothing in it can build objects.",
            "`hvdtrain train --print-config` prints a file to start from.",
        ) from error
    if not isinstance(content, dict):
        raise UsageError(
            f"The config file {path} holds no keys.", "It must be a YAML mapping.", "write lines such as `lr: 0.01`."
        )
    return content


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which the last one would count."""

    def get_single_node(self) -> yaml.Node | None:
        top: yaml.Node | None = super().get_single_node()
        waiting, seen = [top], set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen or not isinstance(node, yaml.CollectionNode):
                continue
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                _require_distinct([key for key, _ in node.value])
                waiting += [value for _, value in node.value]
            else:
                waiting += node.value
        return top


def _require_distinct(keys: Sequence[yaml.Node]) -> None:
    seen: set[tuple[str, str]] = set()
    for key in keys:
        name = (key.tag, str(key.value))
        if name in seen and key.tag != "tag:yaml.org,2002:merge":
            problem = f"the key {key.value!r} is given twice"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        seen.add(name)


def dump_config(config: TrainConfig) -> str:
    """YAML that `--config` reads back to the same config."""
    return dump_values(asdict(config))


def commented_config(config: TrainConfig) -> str:
    """As `dump_config`, in the groups of the help, with each key's help before it."""
    values = asdict(config)
    parts = [_group(name, [key for key in members if key in keys()], values) for name, members in groups().items()]
    return "\n".join(parts)


def _group(name: str, members: list[str], values: dict[str, Any]) -> str:
    lines = [f"# ---- {name} ----\n"]
    if "." in members[0]:
        lines.append(f"{members[0].partition('.')[0]}:\n")
    for key in members:
        outer, _, inner = key.rpartition(".")
        indent = "  " if outer else ""
        lines.append(
            textwrap.fill(keys()[key].about, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        )
        value = values[outer][inner] if outer else values[inner]
        lines.append("\n" + textwrap.indent(dump_values({inner: value}), indent))
    return "".join(lines)


def dump_values(values: dict[str, Any]) -> str:
    """YAML of plain values."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


class _Dumper(yaml.SafeDumper):
    pass


def _quoted_if_number(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if NUMBER.fullmatch(text) else None)


_Dumper.add_representer(str, _quoted_if_number)
