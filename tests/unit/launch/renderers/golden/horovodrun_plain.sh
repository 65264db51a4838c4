#!/usr/bin/env bash
# horovodrun (Gloo)
#
# workers: 6 on node1:4, node2:2
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# network interface: horovodrun asks each host which interfaces reach the others, which takes a while; --nic
#   chooses
# variables: none beyond the usual; all others are left behind, as horovodrun writes values into command lines
# ssh: `hvdtrain launch` logs in to all hosts first and wants known keys; horovodrun takes any
set -eu
for name in $(compgen -e); do
    case $name in
        PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_*|TERM|TMPDIR|SSH_AUTH_SOCK|VIRTUAL_ENV|LD_LIBRARY_PATH|PYTHONPATH|PYTHONUNBUFFERED|XDG_CACHE_HOME|CUDA_HOME|CUDA_VISIBLE_DEVICES|KERAS_BACKEND|OMP_*|HOROVOD_*|HVDTRAIN_*|NCCL_*|TF_*|UCX_*|OMPI_MCA_*|PRTE_MCA_*) ;;
        *) unset "$name" ;;
    esac
done
export HVDTRAIN_START_TIMEOUT=60

exec horovodrun \
    --gloo \
    -np 6 \
    -H node1:4,node2:2 \
    --start-timeout 60 \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
