#!/usr/bin/env bash
# mpirun (Open MPI 4)
#
# workers: 2 on localhost:2
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# binding: none, as by default Open MPI binds all threads of one of two workers to a single core;
#   --cores-per-host gives each worker cores of its own
# network interface: all workers are on this machine
# openib: off, as Horovod's documentation asks: it does not bear Horovod's threads
set -eu

exec mpirun \
    -np 2 \
    --host localhost:2 \
    --bind-to none \
    --map-by slot \
    --mca pml ob1 \
    --mca btl '^openib' \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
