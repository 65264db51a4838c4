"""Train on a Ray cluster: one worker of hvdtrain in each slot of a placement group.

Edit the settings, then: python ray_job.py, on a machine of the cluster, or `ray job submit -- python ray_job.py`.
All machines need hvdtrain, and see COMMAND's folders at the same paths.

Ray reserves the slots and starts the workers; these find each other by the variables that torchrun has, without ssh
and MPI. Ctrl-C or SIGTERM asks them to save a checkpoint and to stop; the exit code is then 75, and the same call
continues.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import Counter

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

WORKERS = 8
CPUS, GPUS = 8, 1  # of each worker
COMMAND = ["train", "--output-dir", "/shared/digits/runs/digits"]
RESTARTS = 3  # after failures, from the last checkpoint
RESUMABLE, WRONG_USAGE = 75, 2


@ray.remote(max_concurrency=2)  # `stop` is called while `train` waits
class Slot:
    """One place for a worker."""

    def where(self):
        """The host, its address, and the GPUs that this slot has."""
        return socket.gethostname(), ray.util.get_node_ip_address(), os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("", 0))
            return probe.getsockname()[1]

    def train(self, variables, options):
        command = [sys.executable, "-m", "hvdtrain", *COMMAND, *options]
        self.worker = subprocess.Popen(command, env={**os.environ, **variables})
        return self.worker.wait()

    def stop(self):
        self.worker.send_signal(signal.SIGTERM)


def start(slots, options):
    """Start a worker in each slot; returns what tells their exit codes."""
    places = ray.get([slot.where.remote() for slot in slots])
    hosts = list(dict.fromkeys(place[:2] for place in places))
    ranks = sorted(range(len(slots)), key=lambda number: hosts.index(places[number][:2]))  # host by host
    sizes, seen = Counter(place[:2] for place in places), Counter()
    common = {
        "WORLD_SIZE": str(len(slots)),
        "MASTER_ADDR": places[ranks[0]][1],
        "MASTER_PORT": str(ray.get(slots[ranks[0]].free_port.remote())),
        "HVDTRAIN_SECRET": secrets.token_hex(16),  # who knows it may take part
    }
    ends = []
    for rank, number in enumerate(ranks):
        host = places[number][:2]
        local = {"RANK": str(rank), "LOCAL_RANK": str(seen[host]), "LOCAL_WORLD_SIZE": str(sizes[host])}
        # A worker uses the GPU of its local rank, and sees all of its host, so that NCCL finds the links.
        gpus = ",".join(places[other][2] for other in ranks if places[other][:2] == host)
        seen[host] += 1
        ends.append(slots[number].train.remote({**common, **local, "CUDA_VISIBLE_DEVICES": gpus.strip(",")}, options))
    return ends


def attempt(slots, options):
    """One start of all workers; returns the job's exit code."""
    ends = start(slots, options)
    try:
        codes = ray.get(ends)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ray.get([slot.stop.remote() for slot in slots])
        codes = ray.get(ends)
    if set(codes) <= {0, RESUMABLE}:
        return max(codes)
    return next(abs(code) for code in codes if code not in (0, RESUMABLE))


def main():
    ray.init()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # after Ray's own handler
    group = placement_group([{"CPU": CPUS, "GPU": GPUS}] * WORKERS, strategy="PACK")
    ray.get(group.ready())  # waits until the cluster has room
    for number in range(RESTARTS + 1):
        slots = [
            Slot.options(
                num_cpus=CPUS,
                num_gpus=GPUS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            ).remote()
            for index in range(WORKERS)
        ]
        try:
            code = attempt(slots, ["--resume", "auto"] if number else [])
        except ray.exceptions.RayActorError as error:
            print(f"ray_job: a slot was lost: {error}", file=sys.stderr)
            code = 1
        for slot in slots:
            ray.kill(slot)  # and its worker
        if code in (0, RESUMABLE, WRONG_USAGE):
            break
    return code


if __name__ == "__main__":
    sys.exit(main())
