"""Which numbers of a bucket are a rank's where the optimizer's state is sharded."""

from collections.abc import Iterator, Sequence


def part_of(numbers: int, rank: int, size: int) -> tuple[int, int]:
    """The first number that is a rank's, and the one behind its last: as Horovod's reducescatter divides them."""
    least, longer = divmod(numbers, size)
    start = rank * least + min(rank, longer)
    return start, start + least + (rank < longer)


def pieces_of(lengths: Sequence[int], rank: int, size: int) -> Iterator[tuple[int, int, int]]:
    """The pieces of arrays that are a rank's part of a bucket.

    Args:
        lengths: numbers of each array, which follow each other in the bucket.

    Yields:
        Which array, its first number that is in the part, and the one behind the last.
    """
    begin, (first, last) = 0, part_of(sum(lengths), rank, size)
    for index, length in enumerate(lengths):
        start, end = max(first - begin, 0), min(last - begin, length)
        if start < end:
            yield index, start, end
        begin += length
