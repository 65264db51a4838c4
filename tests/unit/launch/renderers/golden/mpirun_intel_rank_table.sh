#!/usr/bin/env bash
# mpirun (Intel MPI)
#
# workers: 4 on 10.0.0.1:2, 10.0.0.2:2
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: local rank 0, 1, ... uses device 4,6 of its host, as the rank table says
# binding: none, as the system moves threads to free cores; --cores-per-host gives each worker cores of its
#   own
# network interface: MPI tries all interfaces that are up but the loopback, docker0 too; --nic chooses
# ssh: asks for no password and waits 15 s for a host; `hvdtrain launch` logs in to all of them first
set -eu
export CUDA_VISIBLE_DEVICES=4,6
export I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS='-o BatchMode=yes -o ConnectTimeout=15'
export I_MPI_PIN=0

exec mpirun \
    -n 4 \
    -hosts 10.0.0.1,10.0.0.2 \
    -ppn 2 \
    -genvlist CUDA_VISIBLE_DEVICES \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
