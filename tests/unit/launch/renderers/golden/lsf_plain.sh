#!/usr/bin/env bash
# bsub
#
# script: hvdtrain.lsf, which stays for you to edit and submit again
set -eu
cat > hvdtrain.lsf <<'END-OF-FILE'
#!/bin/bash
#BSUB -J hvdtrain
#BSUB -n 8
#BSUB -R "span[ptile=4]"
#BSUB -o hvdtrain-%J.log
#BSUB -r

# LSF job hvdtrain: bsub < hvdtrain.lsf
#
# workers: 8 on 2 hosts, up to 4 workers each
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# start: hvdtrain launch ssh, by ssh between the hosts and without MPI; --start mpirun or jsrun are other ways
# network interface: of each host, the one that leads to the first; --nic chooses
# slots: one for each core that the job is to have; a worker may have several
# restart: by LSF when a host fails; after other failures and after the time limit only with --max-restarts
# signal: USR2 at the queue's time limit, after which LSF waits ten minutes, and USR1 for the workers

set -eu

if [ -z "${LSB_MCPU_HOSTS:-}" ]; then
    echo "hvdtrain: LSB_MCPU_HOSTS is not set. This script runs inside a job of LSF." >&2
    echo "HINT: submit it: bsub < hvdtrain.lsf" >&2
    exit 2
fi

# Of this job, and of its element where it is an array.
number=$LSB_JOBID
[ "${LSB_JOBINDEX:-0}" = 0 ] || number=$number-$LSB_JOBINDEX

if ! python -c 'import hvdtrain'; then
    echo "hvdtrain: python cannot import hvdtrain on $(hostname). Its workers would end at once." >&2
    echo "HINT: install hvdtrain there, or name an interpreter that has it with --python." >&2
    exit 2
fi

# Each host once, with its workers: LSF names hosts with their slots, which may be their cores.
# No host has more workers than slots, of which a scheduler may give more on one host than on another.
counted=$(awk '
    { for (i = 1; i < NF; i += 2) { if (!n[$i]) name[++hosts] = $i; n[$i] += $(i + 1) } }
    END {
        for (i = 1; i <= hosts; i++) {
            workers = n[name[i]] < 4 ? n[name[i]] : 4
            slots += workers; list = list comma name[i] ":" workers; comma = ","
        }
        print slots + 0, list
    }' <<< "$LSB_MCPU_HOSTS")
slots=${counted%% *} hosts=${counted#* }
if [ "$slots" -lt 8 ]; then
    echo "hvdtrain: The job has 8 workers, 4 on a host." \
        "LSF gives it $slots slots: ${hosts:-no host}." >&2
    echo "HINT: ask for 2 hosts with 4 slots each, or start fewer workers with -np." >&2
    exit 2
fi

# A shell runs its traps between two commands, or while it waits: so the command runs in the background. It reads
# nothing, as a shell may read this script from its standard input.
(trap '' USR2; exec python -m hvdtrain launch ssh \
    -np 8 \
    -H "$hosts" \
    -- train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3 \
    --output-dir "runs/hvdtrain-$number" < /dev/null) &
job=$!
# LSF sends INT and TERM to all processes when it ends the job ("ended"), URG before the time limit, and USR2 at the
# queue's limit, ten minutes before it ends the job. Workers ignore USR2.
ended=0
trap 'ended=1; kill -USR1 "$job" || true' INT TERM
trap 'kill -USR1 "$job" || true' URG USR1 USR2
while kill -0 "$job" 2> /dev/null; do wait "$job" || true; done
code=0
wait "$job" || code=$?
exit "$code"
END-OF-FILE

exec bsub < hvdtrain.lsf
