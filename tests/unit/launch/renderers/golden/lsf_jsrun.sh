#!/usr/bin/env bash
# bsub
#
# script: digits.lsf, which stays for you to edit and submit again
set -eu
cat > digits.lsf <<'END-OF-FILE'
#!/bin/bash
#BSUB -J digits
#BSUB -P digits
#BSUB -nnodes 2
#BSUB -o digits-%J.log
#BSUB -Q "75"
#BSUB -W 1:30
#BSUB -wa URG
#BSUB -wt 2
#BSUB -r

# LSF job digits: bsub < digits.lsf
#
# workers: 8 on 2 hosts, up to 4 workers each
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# start: jsrun starts them, with one resource set for each host
# network interface: ib0, as --nic says
# restart: at most 2 after failures, by LSF; by LSF any number of times, if the workers have saved
# signal: URG for this script 2 min before the time limit, and USR1 for the workers
# variables: API_KEY: bsub takes your whole environment along

set -eu

if [ -z "${LSB_JOBID:-}" ]; then
    echo "hvdtrain: LSB_JOBID is not set. This script runs inside a job of LSF." >&2
    echo "HINT: submit it: bsub < digits.lsf" >&2
    exit 2
fi

export HOROVOD_GLOO_IFACE=ib0
export NCCL_SOCKET_IFNAME==ib0
export OMP_NUM_THREADS=8

# Of this job, and of its element where it is an array.
number=$LSB_JOBID
[ "${LSB_JOBINDEX:-0}" = 0 ] || number=$number-$LSB_JOBINDEX

if ! python -c 'import hvdtrain'; then
    echo "hvdtrain: python cannot import hvdtrain on $(hostname). Its workers would end at once." >&2
    echo "HINT: install hvdtrain there, or name an interpreter that has it with --python." >&2
    exit 2
fi

if ! command -v jsrun > /dev/null; then
    echo "hvdtrain: There is no jsrun on $(hostname), which is to start the workers." >&2
    echo "HINT: load the module that has it in front of bsub, or render the script with --start ssh." >&2
    exit 2
fi

# A shell runs its traps between two commands, or while it waits: so the command runs in the background. It reads
# nothing, as a shell may read this script from its standard input.
(trap '' USR2; exec jsrun \
    --nrs=2 \
    --rs_per_host=1 \
    --tasks_per_rs=4 \
    --cpu_per_rs=32 \
    --gpu_per_rs=4 \
    --launch_distribution=packed \
    --bind=packed:8 \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3 \
    --output-dir /data/runs < /dev/null) &
job=$!
# LSF sends INT and TERM to all processes when it ends the job ("ended"), URG before the time limit, and USR2 at the
# queue's limit, ten minutes before it ends the job. Workers ignore USR2.
ended=0
trap 'ended=1; jskill -s 10 all || true' INT TERM
trap 'jskill -s 10 all || true' URG USR1 USR2
while kill -0 "$job" 2> /dev/null; do wait "$job" || true; done
code=0
wait "$job" || code=$?

# Exit codes: 0 is done; 2 is wrong usage, which a restart does not correct; 75 has saved a checkpoint and always goes
# on; others are failures, and counted.
failures="digits-$number.failures"
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
# LSF queues a job again that ends with 75, also one that it was told to end.
[ "$again" = no ] || code=75
[ "$ended" -eq 0 ] || [ "$code" -ne 75 ] || code=143
exit "$code"
END-OF-FILE

exec bsub < digits.lsf
