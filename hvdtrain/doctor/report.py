"""The doctor's report: a table with hints under it, or JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hvdtrain.doctor.findings import DoctorResult, Finding, merge_hosts, worst_status
from hvdtrain.version import __version__

FORMAT = 1
"""Version of the JSON; docs/doctor.md describes it."""

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def as_json(result: DoctorResult, hosts: Sequence[str], seconds: float) -> dict[str, Any]:
    """The whole report; findings are not merged, each names its host."""
    rates = result.links.rates if result.links else {}
    return {
        "format": FORMAT,
        "hvdtrain": __version__,
        "status": worst_status(result.findings),
        "hosts": list(hosts),
        "findings": [asdict(finding) for finding in result.findings],
        "links": [{"from": a, "to": b, "bytes_per_second": rate} for (a, b), rate in rates.items()],
        "allreduce": result.allreduce,
        "facts": result.facts,
        "seconds": round(seconds, 2),
    }


def print_report(result: DoctorResult, hosts: Sequence[str], seconds: float) -> None:
    """Print the table, then a HINT for each line that is not ok, then what it comes to."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    findings = merge_hosts(result.findings, hosts)
    order = list(dict.fromkeys(finding.name for finding in findings))
    findings.sort(key=lambda finding: order.index(finding.name))
    table = Table(show_edge=False, pad_edge=False)
    for column in ("", "check", *(["host"] if len(hosts) > 1 else []), "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        status = Text(finding.status, _STYLES[finding.status])
        where = [Text(finding.host)] if len(hosts) > 1 else []
        table.add_row(status, Text(finding.name), *where, Text(finding.fact))
    console = Console()
    console.print(table)
    for hint in dict.fromkeys(_hint(finding, len(hosts) > 1) for finding in findings if finding.hint):
        console.print(Text(hint), soft_wrap=True)
    console.print(Text(f"\n{_summary(findings)} ({seconds:.1f} s)"))


def _hint(finding: Finding, several: bool) -> str:
    where = f", {finding.host}" if several and finding.host else ""
    return f"HINT ({finding.name}{where}): {finding.hint}"


def _summary(findings: Sequence[Finding]) -> str:
    count = {status: sum(finding.status == status for finding in findings) for status in _STYLES}
    if count["fail"]:
        return f"{count['fail']} failed, {count['warn']} to look at: a job would not run as it should."
    return f"Nothing failed, {count['warn']} to look at." if count["warn"] else "All is well."
