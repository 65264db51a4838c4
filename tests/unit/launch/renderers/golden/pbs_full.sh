#!/usr/bin/env bash
# qsub
#
# script: digits.pbs, which stays for you to edit and submit again
set -eu
cat > digits.pbs <<'END-OF-FILE'
#!/bin/bash
#PBS -S /bin/bash
#PBS -N digits
#PBS -q gpu
#PBS -A digits
#PBS -P p
#PBS -l select=1:ncpus=32:mpiprocs=4:ngpus=4+1:ncpus=32:mpiprocs=3:ngpus=4
#PBS -l place=scatter
#PBS -l walltime=01:30:00
#PBS -j oe
#PBS -k doe
#PBS -r y
#PBS -V

# PBS job digits: qsub digits.pbs
#
# workers: 7 on 2 hosts, up to 4 workers each
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# start: hvdtrain launch ssh, by ssh between the nodes and without MPI; --start mpirun is the other way
# network interface: ib0, as --nic says
# restart: at most 2 after failures, in the job; a new job any number of times, if the workers have saved
# signal: USR1 for the workers 91 s before the time limit, so that they save
# variables: qsub takes your whole environment along (-V)

set -eu

if [ -z "${PBS_NODEFILE:-}" ]; then
    echo "hvdtrain: PBS_NODEFILE is not set. This script runs inside a job of PBS." >&2
    echo "HINT: submit it: qsub digits.pbs" >&2
    exit 2
fi

cd "$PBS_O_WORKDIR"

if ! python -c 'import hvdtrain'; then
    echo "hvdtrain: python cannot import hvdtrain on $(hostname). Its workers would end at once." >&2
    echo "HINT: install hvdtrain there, or name an interpreter that has it with --python." >&2
    exit 2
fi

# Each node once, with its workers: PBS names a node once for each of its slots, which may be its cores.
# No host has more workers than slots, of which a scheduler may give more on one host than on another.
counted=$(awk '
    { if (!n[$1]++) name[++hosts] = $1 }
    END {
        for (i = 1; i <= hosts; i++) {
            workers = n[name[i]] < 4 ? n[name[i]] : 4
            slots += workers; list = list comma name[i] ":" workers; comma = ","
        }
        print slots + 0, list
    }' "$PBS_NODEFILE")
slots=${counted%% *} hosts=${counted#* }
if [ "$slots" -lt 7 ]; then
    echo "hvdtrain: The job has 7 workers, 4 on a host." \
        "PBS gives it $slots slots: ${hosts:-no host}." >&2
    echo "HINT: ask for 2 hosts with 4 slots each, or start fewer workers with -np." >&2
    exit 2
fi

# The same in each job that this script submits: the number of the first one.
first=${HVDTRAIN_FIRST_JOB:-${PBS_JOBID%%.*}}
first=${first//[[]/-}  # 12[3], an element of an array, is 12-3
first=${first//]/}

# Seconds until the workers are asked to save. SECONDS counts those of this script.
left=$((5309 > SECONDS ? 5309 - SECONDS : 1))
# A shell runs its traps between two commands, or while it waits: so the command runs in the background. It reads
# nothing, as a shell may read this script from its standard input.
timeout \
    --foreground \
    --preserve-status \
    --signal=USR1 "$left" \
    python -m hvdtrain launch ssh \
    -np 7 \
    -H "$hosts" \
    --max-restarts 2 \
    --grace 90.5 \
    --nic ib0 \
    --gpus-per-host 4 \
    --cores-per-host 32 \
    --pass-env API_KEY \
    -- train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3 \
    --output-dir /data/runs < /dev/null &
job=$!
# PBS sends TERM when it ends the job ("ended"): at qdel and at the time limit. `qsig -s SIGUSR1` asks for a
# checkpoint.
ended=0
trap 'ended=1; kill -USR1 "$job" || true' TERM
trap 'kill -USR1 "$job" || true' USR1
while kill -0 "$job" 2> /dev/null; do wait "$job" || true; done
code=0
wait "$job" || code=$?

# 75 has saved a checkpoint and goes on. After a failure, hvdtrain launch ssh has started the workers again by itself.
again=no
[ "$code" -ne 75 ] || again=yes
# Users may not queue a job of PBS again, so this one submits the script for a new job.
if [ "$again" = yes ] && [ -n "${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-}}" ]; then
    echo "hvdtrain: This element of an array is not submitted again: the script would start all of them." >&2
elif [ "$again" = yes ] && [ "$ended" -eq 0 ]; then
    export HVDTRAIN_FIRST_JOB="$first"
    cd "$PBS_O_WORKDIR"
    qsub digits.pbs
fi
exit "$code"
END-OF-FILE

exec qsub digits.pbs
