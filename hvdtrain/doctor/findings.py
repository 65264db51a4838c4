"""The doctor's request, its finding about one subject on one host, and its report: a table with hints, or JSON."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from hvdtrain.launch.hosts.host import Host
from hvdtrain.version import __version__

FORMAT = 1  # Version of the JSON; docs/doctor.md describes it

Status = Literal["ok", "warn", "fail"]  # In the order of severity

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

Facts = Mapping[str, Any]  # What `hvdtrain.doctor.host_facts` collects on one host

HostFacts = Mapping[str, Facts]  # Host name → its facts, in the order in which the user named the hosts


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str  # of the check
    status: Status  # "ok", "warn" (a job may run, worse than it could) or "fail" (a job will not run, or runs wrongly)
    fact: str  # one sentence or a few words, what is the case
    hint: str = ""  # one sentence, what to do; empty where nothing is to be done
    host: str = ""  # on which host; "" for what holds for all hosts, or lies between them


Choice = Mapping[str, Mapping[str, Any]]
"""Host → its interface for the job, as `hvdtrain.doctor.network.interfaces` describes it."""

Link = tuple[str, str]  # From, to


@dataclass(frozen=True, slots=True)
class Links:
    """What was measured: bytes/s of each link, or why it does not connect."""

    rates: Mapping[Link, float]
    broken: Mapping[Link, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """What to examine."""

    hosts: tuple[Host, ...]  # with the slots that a job would use
    framework: str | None = None  # "torch", "tensorflow", or None for what is installed
    # network interfaces to use, in order of preference; empty: the one that hosts know each other by
    nics: tuple[str, ...] = ()
    data: tuple[str, ...] = ()  # paths or globs that every host should see
    output_dir: str | None = None  # where runs are to be written; None: ./runs, which is not insisted on
    python: str = sys.executable  # interpreter on the hosts
    ssh_port: int | None = None  # None: what ssh's own configuration says
    measure: bool = True  # whether links and allreduce are measured
    seconds: float = 3.0  # about how long the measurement of the allreduce may take
    sizes: str | None = None  # of the allreduce, as `hvdtrain bench allreduce --sizes` takes them

    @property
    def frameworks(self) -> list[str]:
        """The one that was asked for; empty: what is installed."""
        return [self.framework] if self.framework else []

    @property
    def slots(self) -> dict[str, int]:
        """Host → its workers, in rank order."""
        return {host.name: host.slots for host in self.hosts}

    @property
    def workers(self) -> int:
        """Of the whole job."""
        return sum(host.slots for host in self.hosts)


@dataclass(slots=True)
class DoctorResult:
    """What was found; `findings` in the order of the report."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    links: Links | None = None
    allreduce: Any = None


def on_each_host(hosts: HostFacts, check: Callable[..., Iterable[Finding]], **each: Mapping[str, Any]) -> list[Finding]:
    """What `check` finds in the facts of each host, given the host's value of every mapping in `each` too."""
    return [
        replace(finding, host=host)
        for host, facts in hosts.items()
        for finding in check(facts, **{name: values[host] for name, values in each.items()})
    ]


def each_value(values: Mapping[str, Any]) -> str:
    """Host → value as text: "1500 on a, 9000 on b"."""
    return ", ".join(f"{value} on {host}" for host, value in values.items())


def worst_status(findings: Iterable[Finding]) -> Status:
    """The most severe status; "ok" of none."""
    return max((finding.status for finding in findings), key=get_args(Status).index, default="ok")


def merge_hosts(findings: Iterable[Finding], hosts: Iterable[str]) -> list[Finding]:
    """Findings that differ in the host only become one, of all those hosts; "" where that is every host.

    The order is that of each finding's first appearance.
    """
    every = list(hosts)
    places: dict[tuple[str, Status, str, str], list[str]] = {}
    for finding in findings:
        key = (finding.name, finding.status, finding.fact, finding.hint)
        places.setdefault(key, []).append(finding.host)
    return [
        Finding(*key, "" if "" in names or set(names) >= set(every) else ", ".join(names))
        for key, names in places.items()
    ]


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
