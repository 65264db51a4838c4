#!/usr/bin/env bash
# mpirun (MPICH)
#
# workers: 6 on node1:4, node2:2
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# binding: none, as the system moves threads to free cores; --cores-per-host gives each worker cores of its
#   own
# network interface: MPI tries all interfaces that are up but the loopback, docker0 too; --nic chooses
# ssh: asks for no password and waits 15 s for a host; `hvdtrain launch` logs in to all of them first
set -eu
export HYDRA_LAUNCHER_EXTRA_ARGS='-o BatchMode=yes -o ConnectTimeout=15'

exec mpirun \
    -n 6 \
    -hosts node1:4,node2:2 \
    -bind-to none \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
