#!/usr/bin/env bash
# sbatch
#
# script: digits.sbatch, which stays for you to edit and submit again
set -eu
cat > digits.sbatch <<'END-OF-FILE'
#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks=7
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --threads-per-core=1
#SBATCH --gpus-per-node=4
#SBATCH --time=01:30:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue

# Slurm job digits: sbatch digits.sbatch
#
# workers: 7 on 2 hosts, up to 4 workers each
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# start: mpirun starts them, and learns the nodes from Slurm
# network interface: ib0, as --nic says
# restart: at most 2 after failures; any number after the time limit, if the workers have saved; the log is
#   appended to
# signal: none before the time limit: Slurm's would reach mpirun's helpers, not the workers
# variables: API_KEY: sbatch takes your whole environment along

set -eu

export HOROVOD_GLOO_IFACE=ib0
export NCCL_SOCKET_IFNAME==ib0
export OMP_NUM_THREADS=8
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# When Slurm ends the job it signals this script too. It must outlive the workers, which save meanwhile.
ended=0
trap ended=1 TERM
code=0
mpirun \
    -np 7 \
    --bind-to core \
    --map-by slot:PE=8 \
    -x API_KEY \
    -x HOROVOD_GLOO_IFACE \
    -x NCCL_SOCKET_IFNAME \
    -x OMP_NUM_THREADS \
    --mca btl_tcp_if_include ib0 \
    --prtemca prte_if_include ib0 \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3 \
    --output-dir /data/runs || code=$?

# Slurm itself starts a cancelled or preempted job again ("ended"). Exit codes: 0 is done; 2 is wrong usage, which a
# restart does not correct; 75 has saved a checkpoint and is always queued again; others are failures, and counted.
failures="$SLURM_JOB_NAME-$SLURM_JOB_ID.failures"
again=no
case "$code" in
    0) rm -f "$failures" ;;
    2) ;;
    75) again=yes ;;
    *)
        echo "$code" >> "$failures"
        [ "$(wc -l < "$failures")" -gt 2 ] || again=yes
        ;;
esac
if [ "$again" = yes ] && [ "$ended" -eq 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
END-OF-FILE

exec sbatch digits.sbatch
