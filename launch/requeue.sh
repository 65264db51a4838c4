code=0
{command} || code=$?

# What was cancelled or preempted ("ended") is Slurm's to start again. 0 is done; 2 is bad usage, which a restart does
# not mend; 75 has saved and goes on, however often. Other ends are failures, counted beside the log.
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
