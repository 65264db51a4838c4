"""`hvdtrain doctor`: find what would go wrong, before a job is started.

    hvdtrain doctor [-np N] [-H a:4,b:4] [--framework torch] [--data PATH] [--output-dir DIR] [--json]

Exit codes: 0 no check failed (there may be warnings); 1 a check failed; 2 wrong usage.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hvdtrain.cli.bench.allreduce import size_list
from hvdtrain.cli.command_parser import CommandParser, positive
from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host, total_slots
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.launcher_api import hosts_from, inside_job, this_host
from hvdtrain.topology import detect_topology

_LOCAL_WORKERS = 2


def run(argv: Sequence[str]) -> int:
    """Examine what `argv` says; returns 0, or 1 if something failed."""
    options = _parse(argv)
    hosts = _hosts(options)
    nics = tuple(nic for nic in options.nic.split(",") if nic)
    # What a job may not be is refused here in the same words: np, interfaces, port.
    JobSpec(command=("train",), np=total_slots(hosts), hosts=hosts, nics=nics, ssh_port=options.ssh_port)
    _require_outside_job()

    from hvdtrain.doctor.examination import examine
    from hvdtrain.doctor.findings import DoctorRequest, as_json, print_report, worst_status

    begin = time.perf_counter()
    request = DoctorRequest(
        hosts=hosts,
        framework=options.framework,
        nics=nics,
        data=tuple(options.data),
        output_dir=options.output_dir,
        python=options.python or sys.executable,
        ssh_port=options.ssh_port,
        measure=not options.no_measure,
        seconds=options.seconds,
        sizes=options.sizes and ",".join(map(str, options.sizes)),
    )
    result = examine(request, _say)
    names = [host.name for host in hosts]
    if options.json:
        sys.stdout.write(json.dumps(as_json(result, names, time.perf_counter() - begin), indent=2) + "\n")
    else:
        print_report(result, names, time.perf_counter() - begin)
    return int(worst_status(result.findings) == "fail")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        "hvdtrain doctor",
        "Nothing was examined.",
        description="Find what would go wrong before a job starts: on this machine, or on all hosts and between them.",
        epilog="Exit codes: 0 no check failed; 1 a check failed; 2 wrong usage.",
    )
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H",
        "--hosts",
        metavar="A:4,B:4",
        help="hosts and slots (default: those that Slurm or another scheduler assigned, else this machine)",
    )
    where.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="file with one host per line: `a slots=4` or `a:4`"
    )
    add("-np", "--np", type=int, metavar="N", help="total number of workers (default: all slots, or 2 on this machine)")
    add("--framework", choices=("torch", "tensorflow"), help="framework to check (default: what is installed)")
    add("--nic", default="", metavar="NAME[,NAME]", help="network interfaces that the job will use")
    add("--data", action="append", default=[], metavar="PATH", help="data that all hosts should see; may be repeated")
    add("--output-dir", metavar="DIR", help="folder to which runs will be written")
    add("--python", metavar="PATH", help="interpreter on the hosts (default: the path of this one)")
    add("--ssh-port", type=int, metavar="PORT", help="port of ssh (default: what its configuration says)")
    add("--no-measure", action="store_true", help="skip the allreduce")
    add("--seconds", type=positive("--seconds"), default=3.0, help="time to measure the allreduce (default: 3)")
    add("--sizes", type=size_list, metavar="4B,64KiB,...", help="sizes of the allreduce (default: 4 B to 64 MiB)")
    add("--json", action="store_true", help="print JSON, with all facts")
    parser.set_defaults(rank_table=None)
    return parser.parse(argv)


def _hosts(options: argparse.Namespace) -> tuple[Host, ...]:
    """Hosts with the slots that are used: `-np` takes the first ones."""
    if options.np is not None and options.np < 1:
        raise UsageError(f"-np is {options.np}.", "A job has one worker or more.", "give a number from 1 up.")
    hosts = hosts_from(options, "doctor") or this_host(_LOCAL_WORKERS)
    if options.np is None:
        return hosts
    used, left = [], options.np
    for host in JobSpec(command=("train",), np=options.np, hosts=hosts).used_hosts:
        used.append(replace(host, slots=min(left, host.slots)))
        left -= host.slots
    return tuple(used)


def _require_outside_job() -> None:
    """Each worker would examine all hosts; variables that a shell was left with are the doctor's to report."""
    try:
        topology = detect_topology(os.environ)
    except UsageError:
        return
    if topology.is_distributed and topology.launcher != "torchrun":
        raise inside_job(topology, "doctor", "examine all hosts")


def _say(what: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"hvdtrain doctor: {what} ...\n")
        sys.stderr.flush()
