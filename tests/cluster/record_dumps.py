"""Record what launchers tell the last of three ranks on two hosts, for tests/unit/topology/dumps.

python tests/cluster/record_dumps.py FOLDER [--openmpi4 MPIRUN ORTED] [--mpich MPIEXEC] [--intel MPIEXEC]

As root, where `make test-cluster` works. host1 runs ranks 0 and 1, host2 rank 2. Launchers that are not in .venv are
named: Open MPI 4 and its daemon as Debian's openmpi-bin has them, MPICH's and Intel's mpiexec.hydra as in the packages
mpich and impi-rt of PyPI.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent
sys.path[:0] = [str(_FOLDER / "emulation"), str(_FOLDER.parent)]

from emulated_hosts import EmulatedHosts  # noqa: E402
from emulated_slurm import EmulatedSlurm  # noqa: E402
from slot import taken_slot  # noqa: E402

HOSTS = "host1:2,host2:1"
SECONDS = 120
_OWNERS = {"horovodrun": ("Horovod",), "mpiexec.hydra": ("Hydra,",)}
_PMIX_ROOT = ("--allow-run-as-root", "--bind-to", "none")


@dataclass(frozen=True)
class Case:
    """One launcher.

    Attributes:
        name: of the dump.
        version: argv that tells its version.
        argv: what comes before the ranks' command.
        in_batch: whether it is called inside `sbatch --nodes=2 --ntasks=3`.
        everywhere: whether it is called on both hosts, with {node} replaced by 0 and 1.
    """

    name: str
    version: tuple[str, ...]
    argv: tuple[str, ...]
    in_batch: bool = False
    everywhere: bool = False


def cases(options: argparse.Namespace) -> list[Case]:
    """All that can be recorded here."""
    horovodrun, mpirun, torchrun = ("horovodrun", "--version"), ("mpirun", "--version"), ("torchrun",)
    torch = ("python", "-c", "import torch; print('torch', torch.__version__)")
    gloo = ("horovodrun", "--gloo", "-np", "3", "-H", HOSTS)
    own = (*torchrun, "--no-python", "--nnodes=2", "--nproc-per-node=2")
    rdzv = ("--rdzv-backend=c10d", "--rdzv-endpoint=host1:29477", "--rdzv-id=dump")
    found = [
        Case("horovodrun_gloo_hosts", horovodrun, gloo),
        Case(
            "horovodrun_mpi_hosts",
            horovodrun,
            ("horovodrun", "--mpi", "--binding-args=--bind-to none --map-by slot", "-np", "3", "-H", HOSTS),
        ),
        Case("sbatch_horovodrun", horovodrun, gloo, in_batch=True),
        Case("openmpi5_hosts", mpirun, ("mpirun", *_PMIX_ROOT, "-np", "3", "--host", HOSTS)),
        Case("sbatch_openmpi5", mpirun, ("mpirun", *_PMIX_ROOT, "-np", "3"), in_batch=True),
        Case(
            "torchrun_hosts",
            torch,
            (*own, "--node-rank={node}", "--master-addr=host1", "--master-port=29478"),
            everywhere=True,
        ),
        Case("srun_torchrun", torch, ("srun", "--nodes=2", "--ntasks=2", *own, *rdzv)),
    ]
    if options.openmpi4:
        own4 = (options.openmpi4[0], *_PMIX_ROOT, "--launch-agent", options.openmpi4[1])
        version = (options.openmpi4[0], "--version")
        found.append(Case("openmpi4_hosts", version, (*own4, "-np", "3", "--host", HOSTS)))
        found.append(Case("sbatch_openmpi4", version, (*own4, "-np", "3"), in_batch=True))
    for name in ("mpich", "intel"):
        if mpiexec := getattr(options, name):
            argv = (mpiexec, "-n", "3", "-hosts", HOSTS)
            found.append(Case(f"{name}_hosts", (mpiexec, "--version"), argv))
            found.append(Case(f"sbatch_{name}", (mpiexec, "--version"), (mpiexec, "-n", "3"), in_batch=True))
    return found


def record(case: Case, slurm: EmulatedSlurm, target: Path) -> None:
    """Run one case and keep what the last rank on host2 was told."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-S", str(_FOLDER / "emulation" / "environment_dump.py"), folder]
        _run(case, command, slurm, Path(folder))
        dumps = sorted(Path(folder).glob("host2.*"), key=lambda path: int(path.suffix[1:]))
        if not dumps:
            raise RuntimeError(f"{case.name}: no rank ran on host2")
        said = slurm.run(case.version, SECONDS)
        version = next(line for line in said.output.splitlines() if any(letter.isdigit() for letter in line)).strip()
        version = " ".join([*_OWNERS.get(Path(case.version[0]).name, ()), *version.split()])
        around = (
            f"inside `sbatch --nodes=2 --ntasks=3` of {slurm.run(['srun', '--version']).stdout.strip()}, "
            if case.in_batch
            else ""
        )
        shown = " ".join(Path(word).name if word.startswith("/") else word for word in case.argv)
        head = f"# Recorded by tests/cluster/record_dumps.py: {version}, {around}`{shown}`, a rank on host2.\n"
        (target / f"{case.name}.env").write_text(head + dumps[-1].read_text())


def _run(case: Case, command: list[str], slurm: EmulatedSlurm, folder: Path) -> None:
    if case.in_batch:
        script = folder / "job.sh"
        script.write_text(f"#!/bin/bash\nexec {shlex.join([*case.argv, *command])}\n")
        job = slurm.submit(
            ["sbatch", "--nodes=2", "--ntasks=3", "--output=job.log", "--export=ALL", str(script)], folder
        )
        if slurm.wait_for_end(job, SECONDS)["JobState"] != "COMPLETED":
            raise RuntimeError(f"{case.name}: {(folder / 'job.log').read_text()}")
        return
    hosts = slurm.hosts.names if case.everywhere else slurm.hosts.names[:1]
    argvs = [[word.replace("{node}", str(node)) for word in (*case.argv, *command)] for node in range(len(hosts))]
    if case.everywhere:
        spawned = [slurm.hosts.spawn(host, argv) for host, argv in zip(hosts, argvs, strict=True)]
    else:
        spawned = [slurm.spawn(argvs[0])]
    for one in spawned:
        done = one.wait(SECONDS)
        if done.returncode:
            raise RuntimeError(f"{case.name}: {done.tail()}")


def main() -> None:
    """Record all cases; one that fails is told, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose names have it in them")
    parser.add_argument("--openmpi4", nargs=2, metavar=("MPIRUN", "ORTED"))
    parser.add_argument("--mpich", metavar="MPIEXEC")
    parser.add_argument("--intel", metavar="MPIEXEC")
    options = parser.parse_args()
    failed = []
    with taken_slot() as slot:
        hosts = EmulatedHosts(slot, 2)
        try:
            hosts.start()
            slurm = EmulatedSlurm(hosts)
            slurm.start()
            for case in (case for case in cases(options) if options.only in case.name):
                try:
                    record(case, slurm, options.folder)
                except (RuntimeError, AssertionError) as error:
                    failed.append(f"{case.name}: {error}")
                hosts.sweep()
        finally:
            hosts.stop()
    sys.exit("\n".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
