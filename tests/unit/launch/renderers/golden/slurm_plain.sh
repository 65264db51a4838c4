#!/usr/bin/env bash
# sbatch
#
# script: hvdtrain.sbatch, which stays for you to edit and submit again
set -eu
cat > hvdtrain.sbatch <<'END-OF-FILE'
#!/bin/bash
#SBATCH --job-name=hvdtrain
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=TERM@60
#SBATCH --requeue

# Slurm job hvdtrain: sbatch hvdtrain.sbatch
#
# workers: 8 on 2 hosts, up to 4 workers each
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# start: srun starts them; they find each other by Slurm's own variables, without ssh and MPI
# network interface: each worker takes the interface that leads to rank 0; --nic chooses
# restart: by Slurm when a node fails; after other failures and preemptions only with --max-restarts; the log
#   is appended to
# signal: TERM for the workers before the time limit, so that they save

set -eu


# When Slurm ends the job it signals this script too. It must outlive the workers, which save meanwhile.
ended=0
trap ended=1 TERM
srun \
    --kill-on-bad-exit=0 \
    --wait=30 \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3 \
    --output-dir "runs/hvdtrain-$SLURM_JOB_ID"
END-OF-FILE

exec sbatch hvdtrain.sbatch
