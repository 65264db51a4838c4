"""What was asked for, and on what it ran: options, versions, hosts."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

import yaml

from data_sharding.storage.redaction import redacted_values
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.history.reading import flattened, mapping, text
from hvdtrain.report import wording
from hvdtrain.report.markup import Markup, details, join, table, tag
from hvdtrain.report.record import RunRecord

_MOST: Final = 500  # options of one table
_LONGEST: Final = 500  # characters of a value
_TOPOLOGY: Final = {"launcher": "launcher", "size": "workers", "num_nodes": "nodes", "hosts": "hosts"}
_CONFIG_CHARACTERS: Final = 50_000


def section(run: RunRecord) -> Markup:
    """Of one run."""
    return join(_options(run), _versions(run), _command(run))


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with dots → values, as on a command line: {"data.dir": …}; an empty mapping is as no value."""
    return {name: None if value == {} else value for name, value in islice(flattened(config), _MOST)}


def cell(value: Any) -> str:
    """A value in a table, shortened where it is very long."""
    text_of_value = wording.plain(value)
    return text_of_value if len(text_of_value) <= _LONGEST else f"{text_of_value[:_LONGEST]}…"


def _options(run: RunRecord) -> Markup:
    config = redacted_values(run.facts.config)  # a page may be sent to others
    if not config:
        return tag("p", "The options are not known.")
    usual = flat(asdict(TrainConfig()))
    changed = {k: v for k, v in flat(config).items() if k not in usual or usual[k] != v}
    rows = [(name, cell(value), cell(usual.get(name))) for name, value in islice(changed.items(), _MOST)]
    whole = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)[:_CONFIG_CHARACTERS]
    return join(
        table("Options that are not the default", ("option", "value", "default"), rows, numbers=False)
        if rows
        else tag("p", "All options have their defaults."),
        details("All options (config.yaml)", tag("pre", whole, tabindex="0")),
    )


def _versions(run: RunRecord) -> Markup | None:
    versions = mapping(run.result, "versions") or mapping(run.facts.environment, "versions")
    rows = [(name, cell(version)) for name, version in islice(versions.items(), _MOST)]
    platform = text(run.facts.environment, "platform")
    rows += [("platform", cell(platform))] if platform else []
    topology = mapping(run.facts.environment, "topology")
    rows += [(name, cell(topology[key])) for key, name in _TOPOLOGY.items() if key in topology]
    title = "Versions and machine"
    return details(title, table(title, ("what", "value"), rows, numbers=False)) if rows else None


def _command(run: RunRecord) -> Markup | None:
    argv = run.facts.environment.get("argv")
    if not isinstance(argv, list) or not argv:
        return None
    words = " ".join(str(word) for word in redacted_values(argv))
    return details("Command", tag("pre", f"hvdtrain {words}"[:_CONFIG_CHARACTERS], tabindex="0"))
