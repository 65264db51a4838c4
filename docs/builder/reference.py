"""The parts of the reference that are made from the code, and where pages want them.

A page of docs/reference names such a part by `<!-- generated: NAME -->`; what follows up to `<!-- end -->` is for those
who read the page in the repository, and is replaced on the site.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from commands import Command, commands
from error_sentences import Said, errors_of
from variables import variables

from hvdtrain.config.conflicts import ROWS, Condition, flag_of
from hvdtrain.config.option_help import all_page, groups, keys, option_of

_MARK = re.compile(r"<!-- generated: ([\w ]+) -->\n.*?<!-- end -->\n", re.DOTALL)
_PUBLIC = ("hvdtrain", "data_sharding", "hvdtrain.torch", "hvdtrain.torch.distributed", "hvdtrain.tensorflow")
_PUBLIC += ("hvdtrain.keras", "hvdtrain.extensions")


def with_generated_parts(root: Path) -> dict[str, str]:
    """The text of each page of docs/, by its path in the repository."""
    return {
        file.relative_to(root).as_posix(): _MARK.sub(
            lambda mark: _PARTS[mark[1]](root), file.read_text(encoding="utf-8")
        )
        for file in sorted((root / "docs").rglob("*.md"))
    }


def generated_pages(root: Path) -> dict[str, str]:
    """Pages that no file has: errors by room."""
    said = _all_errors(root)
    return {f"reference/errors/{_file_of(room)}.md": _errors_of_room(room, said) for room in _rooms(said)}


def _options(_root: Path) -> str:
    told = all_page()
    parts = []
    for name, members in groups().items():
        parts.append(f"\n## {name}\n\n| option | meaning |\n|---|---|\n")
        for key in members:
            known = keys().get(key)
            metavar, about = (known.metavar, known.about) if known else ("", _said_of(key, told))
            shown = f"{option_of(key)} {_breakable(metavar)}".strip()
            parts.append(f'| <a id="{option_of(key).strip("-").lower()}"></a>`{shown}` | {_cell(about)} |\n')
    return "".join(parts)


def _said_of(key: str, page: str) -> str:
    """What --help-all says of an option that is no key."""
    found = re.search(rf"^ +(?:-h, )?{option_of(key)}\b(?: [A-Z]+)? +(.*(?:\n {{20,}}.*)*)", page, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _commands(_root: Path) -> str:
    return "".join(map(_command, commands()))


def _command(command: Command) -> str:
    head = f"\n## hvdtrain {command.name}\n\n{command.line[0].upper()}{_cell(command.line[1:])}.\n\n"
    if command.parser is None:
        return head + "Its options have a page: [options](options.md).\n"
    actions = [action for action in command.parser._actions if action.help != "==SUPPRESS=="]
    actions = [action for action in actions if action.dest not in ("help", "debug")]
    if not actions:
        return head
    rows = (
        f"| `{', '.join(action.option_strings) or action.metavar or action.dest}{_value(action)}` "
        f"| {_cell(_help_of(action))} |\n"
        for action in actions
    )
    return head + "| option | meaning |\n|---|---|\n" + "".join(rows)


def _value(action: object) -> str:
    options, metavar = getattr(action, "option_strings", ()), getattr(action, "metavar", None)
    if not options or getattr(action, "nargs", None) == 0:
        return ""
    choices = getattr(action, "choices", None)
    shown = metavar or (f"{{{','.join(map(str, choices))}}}" if choices else getattr(action, "dest", "").upper())
    return f" {_breakable(shown)}"


def _breakable(choices: str) -> str:
    """With places at which a narrow column may break the line."""
    return choices.replace("|", " or ").replace(",", ", ")


def _help_of(action: object) -> str:
    text = getattr(action, "help", None) or ""
    return re.sub(r"%\((\w+)\)[sdg]", lambda found: str(getattr(action, found[1], "")), text).replace("%%", "%")


def _events(_root: Path) -> str:
    return "::: hvdtrain.engine.events\n    options:\n      show_root_heading: false\n      heading_level: 2\n"


def _api(root: Path) -> str:
    parts = []
    for package in _PUBLIC:
        parts.append(f"\n## {package}\n\n")
        elsewhere = []
        for name, module in _exports(root, package):
            if module.partition(".")[0] in ("hvdtrain", "data_sharding"):
                # A package of that name would be shown instead of the function.
                path = f"{module}.{name}" if (root / package / name).is_dir() else f"{package}.{name}"
                parts.append(f"::: {path}\n    options:\n      heading_level: 3\n\n")
            else:
                elsewhere.append(f"`{package}.{name}` is `{module}.{name}`.\n")
        parts += ["\n", *elsewhere]
    return "".join(parts)


def _exports(root: Path, package: str) -> Iterator[tuple[str, str]]:
    """The public names of a package, each with the module that it comes from. Events have a page of their own."""
    base = root / package.replace(".", "/")
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    if not file.is_file():
        return
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported = _imported(tree)
    assigned = [
        node for node in tree.body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    names = (
        [ast.literal_eval(name) for name in getattr(assigned[0].value, "elts", []) if not isinstance(name, ast.Starred)]
        if assigned
        else [
            node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_"
        ]
    )
    for name in names:
        module = _origin(root, imported.get(name, package), name)
        is_package_below = module == package and (base / name).is_dir()  # of names that Horovod has
        if not name.startswith("__") and name != "events" and not is_package_below:
            yield name, module


def _imported(tree: ast.Module) -> dict[str, str]:
    """Name → the module that a module takes it from."""
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _origin(root: Path, module: str, name: str) -> str:
    """The module that defines a name, or from which a package of ours has it."""
    base = root / module.replace(".", "/")
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    if not module or not file.is_file():
        return module
    further = _imported(ast.parse(file.read_text(encoding="utf-8"))).get(name)
    return module if further in (None, module) else _origin(root, str(further), name)


def _environment(root: Path) -> str:
    rows = (
        f"| `{each.name}` | {_cell(each.about)} | {', '.join(f'`{file}`' for file in each.files)} |\n"
        for each in variables(root)
    )
    return "| variable | what the code says of it | named in |\n|---|---|---|\n" + "".join(rows)


def _exit_codes(_root: Path) -> str:
    from hvdtrain import errors

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HvdtrainError)
    ]
    rows = "".join(f"| `{kind.__name__}` | {kind.exit_code} | {_cell(_first_line(kind))} |\n" for kind in kinds)
    return f"| error | exit code | meaning |\n|---|---:|---|\n{rows}\nExit code {errors.RESUMABLE} is not an error.\n"


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _errors(root: Path) -> str:
    said = _all_errors(root)
    count = Counter(map(_room, said))
    rows = "".join(f"| [{room}](errors/{_file_of(room)}.md) | {count[room]} |\n" for room in _rooms(said))
    return f"{len(said)} errors in all.\n\n| raised in | errors |\n|---|---:|\n{rows}"


def _all_errors(root: Path) -> list[Said]:
    """Those that stand in the code, and those that are made from the table of options that exclude each other."""
    table = [
        Said(
            f"{_condition(row.option)} is given {'with' if row.excludes else 'without'} {_condition(row.other)}.",
            *(row.why, row.hint, "UsageError", "hvdtrain/config/conflicts.py"),
        )
        for row in ROWS
    ]
    return sorted({*errors_of(root), *table}, key=lambda each: (each.fact.lower(), each))


def _condition(condition: Condition) -> str:
    if condition.sign == "!=":
        return f"{flag_of(condition.name)} (not {' or '.join(condition.values)})"
    return str(condition)


def _rooms(said: list[Said]) -> list[str]:
    return sorted({_room(each) for each in said})


def _room(said: Said) -> str:
    package, inner = said.module.split("/")[:2]
    return f"{package}.{inner.removesuffix('.py')}"


def _file_of(room: str) -> str:
    return room.replace(".", "-")


def _errors_of_room(room: str, said: list[Said]) -> str:
    head = f"---\nhide: [toc]\n---\n\n# Errors of {room}\n\nWhat stands in ‹ › is filled in when the error is raised.\n"
    return head + "".join(_error(each) for each in said if _room(each) == room)


def _error(said: Said) -> str:
    """Below its first sentence; below its second one where the first is only known at run time."""
    has_words = re.sub("‹[^›]*›|[ .:]", "", said.fact)
    title, rest = (said.fact, said.conflict) if has_words else (said.conflict, said.fact)
    hint = f"**HINT:** {_plain(said.hint)}\n\n" if said.hint else ""
    return f"\n### {_plain(title)}\n\n{_plain(rest)}\n\n{hint}`{said.kind}` in `{said.module}`\n"


def _plain(text: str) -> str:
    """Text that Markdown and HTML leave as it is; what stands in backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<\[\]#|])", r"\\\1", part) for part in parts)


def _cell(text: str) -> str:
    return _plain(" ".join(text.split()))


_PARTS: dict[str, Callable[[Path], str]] = {
    "options": _options,
    "commands": _commands,
    "python api": _api,
    "events": _events,
    "environment": _environment,
    "exit codes": _exit_codes,
    "errors": _errors,
}
