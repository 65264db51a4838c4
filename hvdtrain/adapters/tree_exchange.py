"""How workers exchange the sums of their virtual workers, decided in the same way for both frameworks.

In general, each worker adds up one slice of all parts in the order of the tree (`adapters.torch.virtual_sync`). Where
each worker has one part, and the tree adds these one after the other, an allreduce can give the same bits, with fewer
copies. It does for two workers, as a + b is b + a; and for three where Horovod adds in the order of the ranks, as it
does over Gloo in the memory of one host. A tree of more than three workers has another order.
"""

from itertools import pairwise

from hvdtrain.algorithms.summation_tree import is_one_after_the_other, subtrees
from hvdtrain.topology.virtual_workers import VirtualWorkers


def all_parts(workers: VirtualWorkers) -> list[range]:
    """The parts of the whole sum that all workers have, from the first term to the last."""
    return [part for rank in range(workers.size) for part in subtrees(workers.of_rank(rank), workers.count)]


def adds_rank_after_rank(workers: VirtualWorkers) -> bool:
    """Whether the tree adds one part of each worker in the order of ranks: ((first + second) + third) and so on."""
    parts = all_parts(workers)
    return len(parts) == workers.size and is_one_after_the_other(parts, workers.count)


def allreduce_follows_tree(workers: VirtualWorkers, adds_in_order: bool) -> bool:
    """Whether Horovod's sum of what workers have has the bits of the sum along the tree.

    Args: `adds_in_order`: Horovod adds in the order of ranks, and rounds each of these sums as the framework does.
    """
    return adds_rank_after_rank(workers) and (workers.size <= 2 or adds_in_order)


def sent_share(workers: VirtualWorkers, adds_in_order: bool) -> float:
    """What the worker that sends most sends in an update, in bytes for each byte of the gradients. A ring sends
    2 · (W - 1) / W. Args: `adds_in_order`: as of `allreduce_follows_tree`."""
    others = (workers.size - 1) / workers.size  # each worker adds up, and then distributes, one slice
    if allreduce_follows_tree(workers, adds_in_order):
        return 2 * others
    parts = max(len(subtrees(workers.of_rank(rank), workers.count)) for rank in range(workers.size))
    return (parts + 1) * others


def slice_lengths(numbers: int, size: int) -> list[int]:
    """How many of a bucket's numbers each worker adds up."""
    ends = [numbers * rank // size for rank in range(size + 1)]
    return [end - begin for begin, end in pairwise(ends)]
