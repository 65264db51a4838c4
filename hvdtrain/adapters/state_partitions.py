"""Which numbers of a bucket are a rank's where the optimizer's state is sharded."""

from collections.abc import Iterable, Iterator, Sequence

from hvdtrain.errors import UsageError


def part_of(numbers: int, rank: int, size: int) -> tuple[int, int]:
    """The first number that is a rank's, and the one behind its last: as Horovod's reducescatter divides them."""
    least, longer = divmod(numbers, size)
    start = rank * least + min(rank, longer)
    return start, start + least + (rank < longer)


def pieces_of(lengths: Sequence[int], rank: int, size: int) -> Iterator[tuple[int, int, int]]:
    """The pieces of arrays that are a rank's part of a bucket.

    Args: `lengths`: numbers of each array, which follow each other in the bucket.

    Yields:
        Which array, its first number that is in the part, and the one behind the last.
    """
    begin, (first, last) = 0, part_of(sum(lengths), rank, size)
    for index, length in enumerate(lengths):
        start, end = max(first - begin, 0), min(last - begin, length)
        if start < end:
            yield index, start, end
        begin += length


def needs_whole_weights(what: str, usable: Iterable[type], place: str) -> UsageError:
    """A part of a weight is not enough for something.

    Args:
        what: what needs more, e.g. "the optimizer Lamb".
        usable: optimizers that update each number of a weight by its own gradient and state.
        place: where these are, e.g. "torch.optim".
    """
    return UsageError(
        f"--shard is given with {what}.",
        "Each worker updates parts of weights, and this may need whole ones.",
        f"use one of {', '.join(sorted(each.__name__ for each in usable))} of {place}, with --max-grad-norm or "
        "--ema-decay where you want these, or leave --shard out.",
    )
