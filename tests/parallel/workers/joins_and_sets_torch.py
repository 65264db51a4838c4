"""Three ranks under a real launcher, of which some have no more batches, or are in a process set.

Each check is run in the order of the file; the last line says that this rank has passed all.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hvdtrain.torch as hvd
import hvdtrain.torch.distributed as dist
from hvdtrain.errors import UsageError
from hvdtrain.torch.call_arguments import WrongProcessSetError

Step = Callable[[torch.Tensor], None]
Steps = list[int]
"""The batches of rank 0, 1 and 2."""


def rows_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def stepping(net: nn.Module, optimizer: Any) -> Step:
    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()

    return step


def made() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def reducing(net: nn.Module) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())


def alone(epochs: list[Steps]) -> nn.Module:
    """Trained by one process, with the batches of all ranks: the mean divides by three also where fewer have one."""
    net = made()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for counts in epochs:
        for step in range(max(counts)):
            optimizer.zero_grad()
            losses = [net(rows_of(step, rank)).square().mean() for rank in range(3) if step < counts[rank]]
            (torch.stack(losses).sum() / 3).backward()
            optimizer.step()
    return net


def require_equal(net: nn.Module, expected: nn.Module) -> None:
    hvd.assert_equal(net)
    torch.testing.assert_close(net.state_dict(), expected.state_dict())


def a_rank_without_batches_takes_part_in_the_next_epoch() -> None:
    """Ranks first compared their parameters while it had joined."""
    epochs = [[2, 2, 0], [2, 1, 2], [1, 1, 1]]
    net, wrapped = made(), hvd.DistributedDataParallel(made())
    step, step_wrapped = stepping(net, reducing(net)), stepping(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))
    for counts in epochs:
        for number in range(counts[hvd.rank()]):
            step(rows_of(number, hvd.rank()))
        hvd.broadcast_parameters(net.state_dict(), hvd.join())
        with wrapped.join():
            for number in range(counts[hvd.rank()]):
                step_wrapped(rows_of(number, hvd.rank()))
    require_equal(net, alone(epochs))
    require_equal(wrapped.module, alone(epochs))


def what_one_rank_has_begun_to_train_all_train_later() -> None:
    """While the others had joined, it first used another optimizer, and unfroze a layer of a model."""
    net, late = made(), made()
    net[0].requires_grad_(False)
    step, step_late = stepping(net, reducing(net)), stepping(late, reducing(late))
    for number in range([3, 1, 1][hvd.rank()]):
        net[0].requires_grad_(number == 2)
        step(rows_of(number, hvd.rank()))
        if number == 2:
            step_late(rows_of(0, hvd.rank()))
    last = hvd.join()
    net[0].requires_grad_(True)
    for model in (net, late):
        hvd.broadcast_parameters(model.state_dict(), last)
    for _ in range(2):
        step(rows_of(1, hvd.rank()))
        step_late(rows_of(1, hvd.rank()))
    hvd.assert_equal(net, late)


def sparse_gradients_stay_sparse() -> None:
    """SparseAdam takes no others."""
    words = nn.Embedding(5, 2, sparse=True)
    hvd.broadcast_parameters(words.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(words.parameters()), words.named_parameters())
    for _ in range(2):
        for _ in range(2):
            optimizer.zero_grad()
            words(torch.tensor([0, 1 + hvd.rank()])).sum().backward()
            optimizer.step()
        hvd.join()
    hvd.assert_equal(words)


def collectives_without_a_name_are_numbered_in_each_set() -> None:
    """Ranks that are not in a set call fewer of them, and a new set may have the number of one that was removed."""
    for ranks in ([0, 1], [1, 2], [0, 1]):
        pair = hvd.add_process_set(ranks)
        for _ in range(2 if pair.included() else 0):
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() == 2.0
            assert hvd.allgather(torch.ones(1), process_set=pair).tolist() == [1.0, 1.0]
        sent = torch.ones(1)
        if pair.included():
            dist.all_reduce(sent, group=pair)
            dist.broadcast(sent, ranks[0], group=pair)
        dist.all_reduce(sent)
        assert sent.item() == 5.0
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3.0
        hvd.remove_process_set(pair)


def what_is_no_process_set_has_a_sentence() -> None:
    """Before anything is sent: the other ranks do not hear of it."""
    pair = hvd.add_process_set([0, 1])
    for send in (hvd.broadcast, hvd.broadcast_object):
        with pytest.raises(WrongProcessSetError, match="root_rank=2, which is none of the 2 ranks"):
            send(torch.ones(1), 2, process_set=pair)
    with pytest.raises(WrongProcessSetError, match="root_rank=3, which is none of the 3 ranks"):
        hvd.broadcast_parameters(made().state_dict(), 3)
    hvd.remove_process_set(pair)
    calls: list[Callable[[], object]] = [
        lambda: hvd.barrier(pair),
        lambda: hvd.allreduce(torch.ones(1), process_set=pair),
        lambda: dist.all_reduce(torch.ones(1), group=pair),
    ]
    for call in calls:
        with pytest.raises(WrongProcessSetError, match="It was removed, or has not been added"):
            call()


def a_set_without_a_rank_or_of_others_is_refused() -> None:
    """By Horovod itself it would end all ranks."""
    for ranks in ([], [0, 3], [-1], [0, 1, 1]):
        for form in (hvd.add_process_set, dist.new_group):
            with pytest.raises(UsageError, match="at least one rank, and each once, of the 3"):
                form(ranks)
    assert dist.new_group([2, 0, 1]) is hvd.global_process_set


def a_set_is_there_until_its_last_group_is_closed() -> None:
    """Scripts in Megatron's style form groups of the same ranks for several purposes."""
    first, second = dist.new_group([1, 0]), dist.new_group([0, 1])
    dist.destroy_process_group(first)
    for call in (dist.barrier, dist.get_rank, dist.get_world_size, dist.destroy_process_group):
        with pytest.raises(WrongProcessSetError, match="It was removed"):
            call(first)
    assert dist.get_process_group_ranks(second) == [0, 1]
    if second.included():
        sent = torch.ones(1)
        dist.all_reduce(sent, group=second)
        assert sent.item() == 2.0
    dist.destroy_process_group(second)
    formed_before = hvd.add_process_set([0, 1])
    dist.destroy_process_group(dist.new_group([0, 1]))
    assert hvd.remove_process_set(formed_before)
    assert dist.get_process_group_ranks() == dist.get_process_group_ranks(dist.group.WORLD) == [0, 1, 2]


def a_rank_outside_of_a_group_takes_no_part() -> None:
    """As in torch: it is warned."""
    pair, sent = dist.new_group([0, 2]), torch.ones(1)
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(sent, group=pair),
        lambda: dist.reduce(sent, 0, dist.ReduceOp.MAX, pair),
        lambda: dist.broadcast(sent, src=2, group=pair, async_op=False),
        lambda: dist.all_gather([torch.zeros(1), torch.zeros(1)], sent, group=pair),
        lambda: dist.all_gather_into_tensor(torch.zeros(2), sent, group=pair),
        lambda: dist.broadcast_object_list([0], 2, pair),
        lambda: dist.barrier(pair),
    ]
    for call in calls:
        with nullcontext() if pair.included() else pytest.warns(UserWarning, match="on rank 1, which is not in the"):
            assert call() is None
    assert sent.item() == (2.0 if pair.included() else 1.0)
    assert dist.get_world_size(pair) == (2 if pair.included() else -1)
    assert dist.get_rank(pair) == [0, -1, 1][hvd.rank()]
    dist.destroy_process_group(pair)


CHECKS: list[Callable[[], None]] = [
    a_rank_without_batches_takes_part_in_the_next_epoch,
    what_one_rank_has_begun_to_train_all_train_later,
    sparse_gradients_stay_sparse,
    collectives_without_a_name_are_numbered_in_each_set,
    what_is_no_process_set_has_a_sentence,
    a_set_without_a_rank_or_of_others_is_refused,
    a_set_is_there_until_its_last_group_is_closed,
    a_rank_outside_of_a_group_takes_no_part,
]


def main() -> None:
    with pytest.raises(UsageError, match=r"A process set was to have the ranks \[0, 3\]"):
        hvd.init(process_sets=[hvd.ProcessSet([0, 3])])
    hvd.init(process_sets="dynamic")
    for check in CHECKS:
        check()
    sys.stdout.write(f"CHECKED rank {hvd.rank()} of {hvd.size()} in {Path(__file__).name}\n")


if __name__ == "__main__":
    main()
