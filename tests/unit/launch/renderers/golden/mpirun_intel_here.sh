#!/usr/bin/env bash
# mpirun (Intel MPI)
#
# workers: 2 on localhost:2
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# binding: none, as the system moves threads to free cores; --cores-per-host gives each worker cores of its
#   own
# network interface: all workers are on this machine
set -eu
export I_MPI_PIN=0

exec mpirun \
    -n 2 \
    -hosts localhost \
    -ppn 2 \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
