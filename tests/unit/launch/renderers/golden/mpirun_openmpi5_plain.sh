#!/usr/bin/env bash
# mpirun (Open MPI 5)
#
# workers: 6 on node1:4, node2:2
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# binding: none, as by default Open MPI binds all threads of one of two workers to a single core;
#   --cores-per-host gives each worker cores of its own
# network interface: MPI tries all interfaces that are up but the loopback, docker0 too; --nic chooses
# ssh: asks for no password and waits 15 s for a host; `hvdtrain launch` logs in to all of them first
set -eu

exec mpirun \
    -np 6 \
    --host node1:4,node2:2 \
    --bind-to none \
    --map-by slot \
    --prtemca plm_ssh_args '-o BatchMode=yes -o ConnectTimeout=15' \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
