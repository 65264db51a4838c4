"""`hvd.assert_equal`: proof that ranks have the same weights."""

from collections.abc import Mapping
from typing import Any

from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.errors import DivergenceError
from hvdtrain.named_arrays import array_checksum
from hvdtrain.torch.collectives import as_lost_peer
from hvdtrain.torch.plain_state import view_of_state
from hvdtrain.torch.world import communicator


@as_lost_peer
def assert_equal(*objects: Any) -> None:
    """Raise `DivergenceError`, on all ranks, unless models, optimizers or other states have the same bits everywhere.

    Only checksums travel. BatchNorm's statistics differ between ranks unless something makes them equal.

    Args: `objects`: what has a `state_dict()`, or a dict of tensors.

    Raises `UsageError`: on all ranks; a state has something else than tensors, numbers, texts and collections of them.
    """
    comm = communicator("hvd.assert_equal")
    named = {f"{type(each).__name__} {number}": each for number, each in enumerate(objects)}
    sums = agree(comm, lambda: _checksums(named), "hvdtrain.equal.read")
    totals = gather_json(
        comm, [len(sums), sum(value * (n + 1) for n, value in enumerate(sums.values()))], "hvdtrain.equal"
    )
    if all(total == totals[0] for total in totals):
        return
    by_rank: list[dict[str, int]] = gather_json(comm, sums, "hvdtrain.equal.names")
    unlike = {rank: _differing(by_rank[0], theirs) for rank, theirs in enumerate(by_rank) if theirs != by_rank[0]}
    first = next(iter(next(iter(unlike.values()))))
    raise DivergenceError(
        f"The state of rank {', '.join(map(str, unlike))} differs from rank 0's, first in {first.partition('/')[2]}.",
        "The ranks no longer train one model.",
        "look for weights that were changed on some ranks, an optimizer that is not distributed, or a missing "
        "broadcast_parameters.",
    ).on_all_ranks()


def _checksums(named: Mapping[str, Any]) -> dict[str, int]:
    """In the order of their names."""
    state = view_of_state({name: _as_object(each) for name, each in named.items()})
    return {name: array_checksum(name, array) for name, array in sorted(state.items())}


def _differing(first: Mapping[str, int], second: Mapping[str, int]) -> list[str]:
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


class _Tensors:
    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = tensors

    def state_dict(self) -> dict[str, Any]:
        return self._tensors

    def load_state_dict(self, _tensors: dict[str, Any]) -> None:
        raise NotImplementedError


def _as_object(each: Any) -> Any:
    if not isinstance(each, dict) and not hasattr(each, "state_dict"):
        return each  # which is refused by its name
    return _Tensors(_in_order(each if isinstance(each, dict) else each.state_dict()))


def _in_order(state: Any) -> Any:
    """The same with the keys of all dicts in order: optimizers have theirs in that of their first updates."""
    if isinstance(state, dict):
        return {key: _in_order(value) for key, value in sorted(state.items(), key=lambda item: str(item[0]))}
    return type(state)(map(_in_order, state)) if type(state) in (list, tuple) else state
