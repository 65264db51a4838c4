code=0
{command} || code=$?

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
        [ "$(wc -l < "$failures")" -gt {max_restarts} ] || again=yes
        ;;
esac
if [ "$again" = yes ] && [ "$ended" -eq 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
