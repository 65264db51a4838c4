#!/usr/bin/env bash
# mpirun (Intel MPI)
#
# workers: 6 on node1:4, node2:2
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# binding: each worker has 8 cores of its own
# network interface: ib0, eth0, as --nic says
# variables: PATH, API_KEY by name: their values stand in no command line
# ssh: asks for no password and waits 15 s for a host; `hvdtrain launch` logs in to all of them first
# root: allowed because --allow-root was given
set -eu
export FI_TCP_IFACE=ib0
export HOROVOD_GLOO_IFACE=ib0
export I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS='-p 2222 -o BatchMode=yes -o ConnectTimeout=15'
export I_MPI_JOB_TIMEOUT=5400
export I_MPI_PIN=1
export I_MPI_PIN_CELL=core
export I_MPI_PIN_DOMAIN=omp
export NCCL_SOCKET_IFNAME==ib0,eth0
export OMP_NUM_THREADS=8
cat > digits.hosts <<'END-OF-FILE'
node1:4
node2:2
END-OF-FILE

exec mpirun \
    -n 6 \
    -machinefile digits.hosts \
    -genvlist PATH,API_KEY,HOROVOD_GLOO_IFACE,NCCL_SOCKET_IFNAME,OMP_NUM_THREADS \
    -iface ib0 \
    -wdir '/shared/my digits' \
    /opt/venv/bin/python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3
