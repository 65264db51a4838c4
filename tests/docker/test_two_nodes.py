"""Two containers: the example of docker/compose.yaml, the other launchers over its sshd, and an MPIJob's commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine import Engine

from hvdtrain.launch import kubernetes
from hvdtrain.launch.job_spec import JobSpec

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker/compose.yaml").read_text(encoding="utf-8"))["services"]
SUBNET = "10.89.211"
ADDRESSES = {"node1": f"{SUBNET}.11", "node2": f"{SUBNET}.12"}
KEYS = f"{kubernetes.HOME}/.ssh"
FEW = ("train", "--max-steps", "5", "--output-dir", "/runs/few")

_OPERATORS_KEYS = """
cd /keys
ssh-keygen -q -t rsa -b 2048 -m PEM -N '' -f id_rsa
cp id_rsa.pub authorized_keys
chmod 644 *
"""


@dataclass(frozen=True)
class Nodes:
    """Both nodes of the example; the second one waits with its sshd."""

    engine: Engine
    image: str
    keys: str
    runs: str
    network: str

    def flags(self, node: str) -> tuple[str, ...]:
        """What the example says of a node, in the engine's words, and a name and an address for it."""
        service = SERVICES[node]
        flags = ["--network", self.network, "--ip", ADDRESSES[node], "--hostname", node]
        flags += [word for name, address in ADDRESSES.items() for word in ("--add-host", f"{name}:{address}")]
        flags += ["--read-only", *(word for path in service["tmpfs"] for word in ("--tmpfs", path))]
        flags += [word for name in service["cap_drop"] for word in ("--cap-drop", name)]
        flags += [word for name in service["security_opt"] for word in ("--security-opt", name.partition(":")[0])]
        flags += ["--shm-size", service["shm_size"].removesuffix("b")]
        return (*flags, "-v", f"{self.keys}:{KEYS}:ro", "-v", f"{self.runs}:/runs")

    def launch(self, *words: str, flags: tuple[str, ...] = ()) -> dict[str, Any]:
        """Runs a command on node1 and returns the result of the run in /runs/few."""
        self.engine.run(self.image, *words, flags=(*self.flags("node1"), *flags))
        shown = self.engine.run(self.image, "cat", "/runs/few/result.json", flags=("-v", f"{self.runs}:/runs"))
        result: dict[str, Any] = json.loads(shown.stdout)
        return result


@pytest.fixture(scope="module")
def network(engine: Engine) -> Iterator[str]:
    """A network with a subnet of its own."""
    engine.call("network", "create", "--subnet", f"{SUBNET}.0/24", "hvdtrain-check")
    yield "hvdtrain-check"
    engine.call("network", "rm", "--force", "hvdtrain-check", check=False)


@pytest.fixture(scope="module")
def keys(engine: Engine, image: str) -> Iterator[str]:
    """The volume that the example's service `keys` fills."""
    with engine.volume() as name:
        engine.run(image, *SERVICES["keys"]["command"], flags=("-v", f"{name}:{KEYS}"))
        yield name


@pytest.fixture
def nodes(engine: Engine, image: str, network: str, keys: str, runs: str) -> Iterator[Nodes]:
    """The example, but for node1's command."""
    both = Nodes(engine, image, keys, runs, network)
    with engine.running(image, *SERVICES["node2"]["command"], flags=both.flags("node2")) as node2:
        wait_for_sshd(engine, node2)
        yield both


def wait_for_sshd(engine: Engine, name: str) -> None:
    """Until the container says that it is healthy; it tries for itself as often as asked."""
    script = "for try in $(seq 100); do hvdtrain-health > /dev/null 2>&1 && exit 0; sleep 0.1; done; hvdtrain-health"
    engine.call("exec", name, "/bin/sh", "-c", script)


def test_the_example_trains_on_both_nodes(nodes: Nodes) -> None:
    command = SERVICES["node1"]["command"]
    words = [*command[: command.index("--") + 1], *FEW]
    assert nodes.launch(*words)["world_size"] == 4


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_other_launchers_reach_the_second_node(nodes: Nodes, launcher: str) -> None:
    hosts = ("-H", "node1:1,node2:1")
    words = ["hvdtrain", "launch", launcher, *hosts, "--", *FEW]
    assert nodes.launch(*words)["world_size"] == 2


def test_a_host_with_another_key_is_not_believed(nodes: Nodes, engine: Engine, image: str) -> None:
    with engine.volume() as others:
        engine.run(image, *SERVICES["keys"]["command"], flags=("-v", f"{others}:{KEYS}"))
        flags = Nodes(engine, image, others, nodes.runs, nodes.network).flags("node1")
        run = engine.run(image, "ssh", "-o", "BatchMode=yes", "node2", "true", flags=flags, check=False)
    assert run.returncode == 255
    assert "verification failed" in run.stderr.lower()
    own = engine.run(image, "ssh", "-o", "BatchMode=yes", "node2", "command -v mpirun", flags=nodes.flags("node1"))
    assert own.stdout.strip() == "/opt/hvdtrain/bin/mpirun"


def test_the_commands_of_an_mpijob_run_with_keys_as_the_operator_mounts_them(
    engine: Engine, image: str, network: str, runs: str, tmp_path: Path
) -> None:
    """A Kubernetes secret: files of root that all may read, and one RSA key for everything."""
    job = JobSpec(command=("train", *FEW[1:]), np=2, slots_per_host=1, image=image, python="python")
    replicas = kubernetes.mpi_job(job, kubernetes.KubernetesOptions())["spec"]["mpiReplicaSpecs"]
    launcher, worker = (replicas[name]["template"]["spec"]["containers"][0] for name in ("Launcher", "Worker"))
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node1 slots=1\nnode2 slots=1\n", encoding="utf-8")
    with engine.volume() as keys:
        engine.run(image, "/bin/sh", "-ec", _OPERATORS_KEYS, flags=("--user", "0:0", "-v", f"{keys}:/keys"))
        nodes = Nodes(engine, image, keys, runs, network)
        sshd = (*worker["args"],)
        entry = ("--entrypoint", worker["command"][0])
        with (
            engine.running(image, *sshd, flags=(*nodes.flags("node1"), *entry)) as first,
            engine.running(image, *sshd, flags=(*nodes.flags("node2"), *entry)) as second,
        ):
            wait_for_sshd(engine, first)
            wait_for_sshd(engine, second)
            flags = [flag if flag != ADDRESSES["node1"] else f"{SUBNET}.10" for flag in nodes.flags("node1")]
            flags[flags.index("--hostname") + 1] = "launcher"
            flags += ["--entrypoint", launcher["command"][0], "-v", f"{hostfile}:{kubernetes.HOSTFILE}:ro"]
            engine.run(image, *launcher["args"], flags=tuple(flags))
    shown = engine.run(image, "cat", "/runs/few/result.json", flags=("-v", f"{runs}:/runs"))
    assert json.loads(shown.stdout)["world_size"] == 2
