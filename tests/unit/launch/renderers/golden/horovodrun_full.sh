#!/usr/bin/env bash
# horovodrun (Gloo)
#
# workers: 6 on node1:4, node2:2
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# network interface: ib0, eth0, as --nic says
# variables: PATH; all others are left behind, as horovodrun writes values into command lines
# ssh: `hvdtrain launch` logs in to all hosts first and wants known keys; horovodrun takes any
set -eu
for name in $(compgen -e); do
    case $name in
        PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_*|TERM|TMPDIR|SSH_AUTH_SOCK|VIRTUAL_ENV|LD_LIBRARY_PATH|PYTHONPATH|PYTHONUNBUFFERED|XDG_CACHE_HOME|CUDA_HOME|CUDA_VISIBLE_DEVICES|KERAS_BACKEND|OMP_*|HOROVOD_*|HVDTRAIN_*|NCCL_*|TF_*|UCX_*|OMPI_MCA_*|PRTE_MCA_*|PATH) ;;
        *) unset "$name" ;;
    esac
done
export HOROVOD_GLOO_IFACE=ib0
export HVDTRAIN_START_TIMEOUT=60
export NCCL_SOCKET_IFNAME==ib0,eth0
export OMP_NUM_THREADS=8
cd '/shared/my digits'

exec horovodrun \
    --gloo \
    -np 6 \
    -H node1:4,node2:2 \
    --start-timeout 60 \
    --network-interfaces ib0,eth0 \
    --ssh-port 2222 \
    /opt/venv/bin/python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
