#!/usr/bin/env bash
# mpirun (Open MPI 4)
#
# workers: 6 on node1:4, node2:2
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# binding: each worker has 8 cores of its own
# network interface: ib0, eth0, as --nic says
# variables: PATH, API_KEY by name: their values stand in no command line
# openib: off, as Horovod's documentation asks: it does not bear Horovod's threads
# ssh: asks for no password and waits 15 s for a host; `hvdtrain launch` logs in to all of them first
# root: allowed because --allow-root was given
set -eu
export HOROVOD_GLOO_IFACE=ib0
export NCCL_SOCKET_IFNAME==ib0,eth0
export OMP_NUM_THREADS=8

exec mpirun \
    -np 6 \
    --host node1:4,node2:2 \
    --bind-to core \
    --map-by slot:PE=8 \
    -x PATH \
    -x API_KEY \
    -x HOROVOD_GLOO_IFACE \
    -x NCCL_SOCKET_IFNAME \
    -x OMP_NUM_THREADS \
    --mca pml ob1 \
    --mca btl '^openib' \
    --mca btl_tcp_if_include ib0,eth0 \
    --mca oob_tcp_if_include ib0,eth0 \
    --mca plm_rsh_args '-p 2222 -o BatchMode=yes -o ConnectTimeout=15' \
    --wdir '/shared/my digits' \
    --timeout 5400 \
    --allow-run-as-root \
    /opt/venv/bin/python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
