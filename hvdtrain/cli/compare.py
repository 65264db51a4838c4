"""`hvdtrain compare RUN RUN…`: what differs between runs in config, environment and outcome."""

import json
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.tables import STATE_STYLES, Column, console, print_fitting
from hvdtrain.history.comparison import MISSING, Comparison, Difference, Outcome, as_json, compare
from hvdtrain.history.weight_hashes import SameBits
from hvdtrain.run.sinks.terminal import printable

_DESCRIPTION = """\
Show what differs between runs: options, versions and machines, data, and the outcome. Values that are equal are not
shown. Differences and ratios are relative to the first run."""
_DIGITS: Final = 12  # of a hash
_NAMED: Final = 5  # weights


def run(argv: Sequence[str]) -> int:
    """Compare the runs that `argv` names; returns 0."""
    parser = CommandParser("hvdtrain compare", "Nothing was compared.", description=_DESCRIPTION)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run folders")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse(argv)
    comparison = compare(options.runs)
    if options.json:
        print(json.dumps(as_json(comparison), indent=2, default=str))
    else:
        _print(comparison)
    return 0


def _print(comparison: Comparison) -> None:
    letters = _letters(len(comparison.runs))
    words = [run.state.word for run in comparison.runs]
    print_fitting(
        [
            Column("", letters),
            Column("run", [str(run.path) for run in comparison.runs]),
            Column("state", words, [STATE_STYLES[word] for word in words]),
        ]
    )
    for run, letter in zip(comparison.runs, letters, strict=True):
        for problem in run.problems:
            print(f"{letter}: {printable(problem)}")
    _print_differences("config", "config.yaml", comparison.config, letters)
    _print_differences("environment", "env.json", comparison.environment, letters)
    _print_outcomes(comparison, letters)


def _print_differences(title: str, file: str, rows: Sequence[Difference] | None, letters: Sequence[str]) -> None:
    if rows is None:
        print(f"\n{title}: unknown, as {file} of one run cannot be read")
        return
    if not rows:
        print(f"\n{title}: equal")
        return
    print()
    columns = [Column(letter, [_text(row.values[n]) for row in rows]) for n, letter in enumerate(letters)]
    print_fitting([Column(title, [row.key for row in rows]), *columns])


def _print_outcomes(comparison: Comparison, letters: Sequence[str]) -> None:
    print()
    rows = comparison.outcomes
    if rows:
        values = [
            Column(letter, [_number(row.values[n]) for row in rows], is_number=True) for n, letter in enumerate(letters)
        ]
        changes = [
            Column(f"{letter} vs {letters[0]}", [_change(row, n) for row in rows], is_number=True)
            for n, letter in enumerate(letters[1:])
        ]
        print_fitting([Column("outcome", [row.name for row in rows]), *values, *changes])
        print()
    screen = console()
    screen.print(f"weights: {_verdict(comparison.same_weights, comparison.weights)}", highlight=False)
    screen.print(f"data: {_verdict(comparison.same_data, comparison.data)}", highlight=False)
    batches = {None: "unknown", True: "the same records", False: "other records"}[comparison.same_batches]
    screen.print(f"batches of each step: {batches}", highlight=False)
    if comparison.bits is not None:
        screen.print(f"bits: {printable(_bits(comparison.bits))}", highlight=False)


def _bits(bits: SameBits) -> str:
    if not bits.same_workers:
        alone = replace(bits, same_workers=True)
        return f"{_bits(alone)}; gradients were not compared, as not all runs have those of as many virtual workers"
    until = "" if bits.same_until is None else f"the same until step {bits.same_until}"
    if bits.first_difference is None:
        return f"{until}, the last one of which all runs have checksums"
    some = ", ".join(bits.differing[:_NAMED]) + (" …" if len(bits.differing) > _NAMED else "")
    differ = f"{len(bits.differing)} of {bits.weights} weights differ at step {bits.first_difference}"
    differ += f": {some}" if some else ""
    if bits.gradients_of:
        numbers = ", ".join(str(number) for number in bits.gradients_of)
        differ += f"; the gradients of that step differ in virtual worker{'s' * (len(bits.gradients_of) > 1)} {numbers}"
    return f"{until}; {differ}" if until else differ


def _verdict(equal: bool | None, hashes: Sequence[str]) -> str:
    short = [hash_[:_DIGITS] or "unknown" for hash_ in hashes]
    if equal:
        return f"equal ({short[0]})"
    return f"{'unknown' if equal is None else 'different'} ({', '.join(short)})"


def _change(row: Outcome, number: int) -> str:
    change = row.changes()[number]
    if change is None:
        return ""
    if row.is_speed:
        return f"× {change:.2f}"
    return "=" if change == 0 else f"{'+' if change > 0 else '−'}{_number(abs(change))}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if value is MISSING:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)


def _letters(count: int) -> list[str]:
    names = string.ascii_uppercase
    return [names[n] if n < len(names) else f"{names[n % 26]}{n // 26}" for n in range(count)]
