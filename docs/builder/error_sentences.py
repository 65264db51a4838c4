"""Every error that the code raises with its three parts: fact, conflict, HINT; read from the source, not run."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PASS_ON = ("join", "list", "sorted", "str", "repr")
_PARTS = ("fact", "conflict", "hint")
_FEWEST_LETTERS = 10
"""Of the longest part of an error, besides what is filled in."""

_ADDED = {"did_you_mean": "the nearest valid name, and all valid names"}


@dataclass(frozen=True, order=True)
class Said:
    """One error: its sentences with ‹names› for what is filled in, its class, and where it is raised."""

    fact: str
    conflict: str
    hint: str
    kind: str
    module: str


def errors_of(root: Path, packages: tuple[str, ...] = ("hvdtrain", "data_sharding")) -> list[Said]:
    """All errors below some packages, sorted by their first sentence."""
    found: set[Said] = set()
    for package in packages:
        for file in sorted((root / package).rglob("*.py")):
            module = file.relative_to(root).as_posix()
            found |= set(_errors_of_module(ast.parse(file.read_text(encoding="utf-8")), module))
    return sorted(found, key=lambda each: (each.fact.lower(), each))


def _errors_of_module(tree: ast.Module, module: str) -> Iterator[Said]:
    for scope, node in _with_scope(tree, {}):
        if isinstance(node, ast.Call):
            kind = _name(node.func)
            values = _three(node)
            if kind.endswith("Error") and not hasattr(builtins, kind) and values:
                yield from _said([_text(value, scope) for value in values], kind, module)
        elif isinstance(node, ast.Tuple) and len(node.elts) in (3, 4) and all(map(_is_text, node.elts[-3:])):
            yield from _said([_text(value, scope) for value in node.elts[-3:]], "UsageError", module)


def _said(parts: list[str], kind: str, module: str) -> Iterator[Said]:
    """One error; none where all of its words are only known at run time, as where an error is passed on."""
    fact, conflict, hint = (" ".join(part.split()) for part in parts)
    words = [re.sub("‹[^›]*›", "", part) for part in (fact, conflict, hint)]
    is_sentence = fact.rstrip("›)`'\"").endswith((".", "!", "?", "…")) or fact.endswith(("›", "."))
    if is_sentence and max(map(len, words)) > _FEWEST_LETTERS:
        yield Said(fact, conflict, hint, kind, module)


def _three(call: ast.Call) -> list[ast.expr] | None:
    """The three parts of a call; None where it does not have them."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    values = [*call.args[:3]]
    values += [named[part] for part in _PARTS[len(values) :] if part in named]
    if len(values) == 2 and _name(call.func) == "CorruptRecordError":
        values.append(ast.Constant("restore the file from its source."))
    starred = any(isinstance(value, ast.Starred) for value in values)
    return values if len(values) == 3 and not starred and any(map(_is_text, values)) else None


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) or _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr)


def _with_scope(node: ast.AST, scope: Mapping[str, ast.expr]) -> Iterator[tuple[Mapping[str, ast.expr], ast.AST]]:
    """Each node with the texts that its function and its module give names to."""
    if isinstance(node, (ast.FunctionDef, ast.Module)):
        texts = dict(_named_texts(node))
        scope = {**scope, **texts} if isinstance(node, ast.FunctionDef) else texts
    for child in ast.iter_child_nodes(node):
        yield scope, child
        yield from _with_scope(child, scope)


def _named_texts(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            is_many = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=False) if is_many else [(target, value)]
            yield from ((name.id, text) for name, text in pairs if isinstance(name, ast.Name) and _is_text(text))


def _text(node: ast.expr, scope: Mapping[str, ast.expr]) -> str:
    """What a reader sees of an expression; what is only known at run time as ‹name›."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value, scope) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, {}) if not isinstance(node.value, ast.Name) else _shown(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, scope) + _text(node.right, scope)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, scope)}{_or(node, scope)}"
    if isinstance(node, ast.Name) and node.id in scope:
        return _text(scope[node.id], {name: value for name, value in scope.items() if name != node.id})
    return _shown(node)


def _or(node: ast.IfExp, scope: Mapping[str, ast.expr]) -> str:
    other = _text(node.orelse, scope)
    return f" / {other}" if other.strip() else ""


def _shown(node: ast.expr) -> str:
    name = _name(node)
    if name in _ADDED:
        return f"‹{_ADDED[name]}›"
    words = name.strip("_").replace("_", " ")
    return f"‹{words}›" if words else "‹…›"


def _name(node: ast.expr) -> str:
    """The last name in an expression, which says most of what it is."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        function = _name(node.func)
        return _name(node.args[0]) if function in _PASS_ON and node.args else function
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, (ast.BinOp,)):
        return _name(node.left) or _name(node.right)
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        return _name(node.generators[0].iter)
    return ""
