"""Pipe mode: one FIFO per local worker, which an agent fills in sequence; it is read once and never shared.

SageMaker delivers a channel of objects as a FIFO `<base>/<channel>_<epoch>`. Two readers of one FIFO get torn records,
or the one that lost the race waits for ever while the winner blocks in a collective. So each worker has a channel of
its own, and whoever opens a channel second is refused at once.

    PipePlan          files -> one channel a worker, largest first, with the record counts that are to arrive
    check_openers     what all workers are about to open -> nothing, or an error that names the two that collide
    PipeReader        one channel of one process: lock, deadlines, framing, counts
    PipeLoader        decoded batches where all ranks' record counts are known, from which PipeSteps follow
    UnevenPipeLoader  decoded batches where they are not: ranks exchange their counts in each step
    PipeSimulator     a local agent with the same semantics, for tests and dry runs without a cloud
"""
