#!/usr/bin/env bash
# bsub
#
# script: digits.lsf, which stays for you to edit and submit again
set -eu
cat > digits.lsf <<'END-OF-FILE'
#!/bin/bash
#BSUB -J digits
#BSUB -n 64
#BSUB -R "span[ptile=32]"
#BSUB -gpu "num=4:mode=shared:j_exclusive=yes"
#BSUB -o digits-%J.log
#BSUB -Q "75"
#BSUB -W 1:30
#BSUB -wa URG
#BSUB -wt 2
#BSUB -r

# LSF job digits: bsub < digits.lsf
#
# workers: 7 on 2 hosts, up to 4 workers each
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# start: mpirun starts them on the hosts of LSB_MCPU_HOSTS
# network interface: ib0, as --nic says
# slots: one for each core that the job is to have; a worker may have several
# restart: at most 2 after failures, by LSF; by LSF any number of times, if the workers have saved
# signal: URG for this script 2 min before the time limit, and USR1 for the workers
# variables: API_KEY: bsub takes your whole environment along

set -eu

if [ -z "${LSB_MCPU_HOSTS:-}" ]; then
    echo "hvdtrain: LSB_MCPU_HOSTS is not set. This script runs inside a job of LSF." >&2
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
if [ "$slots" -lt 7 ]; then
    echo "hvdtrain: The job has 7 workers, 4 on a host." \
        "LSF gives it $slots slots: ${hosts:-no host}." >&2
    echo "HINT: ask for 2 hosts with 4 slots each, or start fewer workers with -np." >&2
    exit 2
fi

# A shell runs its traps between two commands, or while it waits: so the command runs in the background. It reads
# nothing, as a shell may read this script from its standard input.
(trap '' USR2; exec mpirun \
    -np 7 \
    --host "$hosts" \
    --bind-to core \
    --map-by slot:PE=8 \
    -x API_KEY \
    -x HOROVOD_GLOO_IFACE \
    -x NCCL_SOCKET_IFNAME \
    -x OMP_NUM_THREADS \
    --mca btl_tcp_if_include ib0 \
    --prtemca prte_if_include ib0 bash \
    -c 'trap '"'"''"'"' USR2; exec "$@"' bash \
    python -m hvdtrain train \
    --data.path 'it'"'"'s a folder; $HOME' \
    --max-steps 3 \
    --output-dir /data/runs < /dev/null) &
job=$!
# LSF sends INT and TERM to all processes when it ends the job ("ended"), URG before the time limit, and USR2 at the
# queue's limit, ten minutes before it ends the job. Workers ignore USR2.
ended=0
trap 'ended=1; kill -USR1 "$job" || true' INT TERM
trap 'kill -USR1 "$job" || true' URG USR1 USR2
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
