#!/usr/bin/env bash
# qsub
#
# script: hvdtrain.pbs, which stays for you to edit and submit again
set -eu
cat > hvdtrain.pbs <<'END-OF-FILE'
#!/bin/bash
#PBS -S /bin/bash
#PBS -N hvdtrain
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l place=scatter
#PBS -j oe
#PBS -k doe
#PBS -r y
#PBS -V

# PBS job hvdtrain: qsub hvdtrain.pbs
#
# workers: 8 on 2 hosts, up to 4 workers each
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# start: mpirun starts them on the nodes of PBS_NODEFILE
# network interface: MPI tries all interfaces that are up but the loopback, docker0 too; --nic chooses
# restart: by PBS when a node fails, or to make room for another job; otherwise only with --max-restarts
# signal: none before the time limit: this mpirun passes none on; give the command a --max-time
# variables: qsub takes your whole environment along (-V)

set -eu

if [ -z "${PBS_NODEFILE:-}" ]; then
    echo "hvdtrain: PBS_NODEFILE is not set. This script runs inside a job of PBS." >&2
    echo "HINT: submit it: qsub hvdtrain.pbs" >&2
    exit 2
fi

cd "$PBS_O_WORKDIR"
unset OMP_NUM_THREADS  # where PBS writes the cores of all workers of a node
export I_MPI_PIN=0

if ! python -c 'import hvdtrain'; then
    echo "hvdtrain: python cannot import hvdtrain on $(hostname). Its workers would end at once." >&2
    echo "HINT: install hvdtrain there, or name an interpreter that has it with --python." >&2
    exit 2
fi

# Each node once, with its workers: PBS names a node once for each of its slots, which may be its cores.
# No host has more workers than slots, of which a scheduler may give more on one host than on another (Intel MPI takes one number for all).
counted=$(awk '
    { if (!n[$1]++) name[++hosts] = $1 }
    END {
        for (i = 1; i <= hosts; i++) {
            workers = n[name[i]] < 4 ? n[name[i]] : 4
            slots += workers; list = list comma name[i]; comma = ","
        }
        print slots + 0, list
    }' "$PBS_NODEFILE")
slots=${counted%% *} hosts=${counted#* }
if [ "$slots" -lt 8 ]; then
    echo "hvdtrain: The job has 8 workers, 4 on a host." \
        "PBS gives it $slots slots: ${hosts:-no host}." >&2
    echo "HINT: ask for 2 hosts with 4 slots each, or start fewer workers with -np." >&2
    exit 2
fi

# The same in each job that this script submits: the number of the first one.
first=${HVDTRAIN_FIRST_JOB:-${PBS_JOBID%%.*}}
first=${first//[[]/-}  # 12[3], an element of an array, is 12-3
first=${first//]/}

# A shell runs its traps between two commands, or while it waits: so the command runs in the background. It reads
# nothing, as a shell may read this script from its standard input.
mpirun \
    -n 8 \
    -hosts "$hosts" \
    -ppn 4 \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3 \
    --output-dir "runs/hvdtrain-$first" < /dev/null &
job=$!
# PBS sends TERM when it ends the job ("ended"): at qdel and at the time limit. `qsig -s SIGUSR1` asks for a
# checkpoint.
ended=0
trap 'ended=1; kill "$job" || true' TERM
trap ':' USR1
while kill -0 "$job" 2> /dev/null; do wait "$job" || true; done
code=0
wait "$job" || code=$?
exit "$code"
END-OF-FILE

exec qsub hvdtrain.pbs
