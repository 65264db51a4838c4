"""Virtual workers: training is that of V workers, whatever W of them there are (`--virtual-workers V`).

Virtual worker v of V has the slots [v·G/V, (v+1)·G/V) of each global batch of G records, random numbers of its own and
BatchNorm statistics of its own. Worker r of W computes the virtual workers [r·V/W, (r+1)·V/W), one after the other.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VirtualWorkers:
    """Those of one worker."""

    count: int  # V, of the whole job
    rank: int  # r, of this worker
    size: int  # W, 1 to V
    global_batch: int  # G, V or more
    gloo_adds_in_order: bool = False  # an allreduce over Gloo adds what workers have in the order of their ranks

    def of_rank(self, rank: int) -> range:
        """The virtual workers that a worker computes."""
        return range(rank * self.count // self.size, (rank + 1) * self.count // self.size)

    @property
    def own(self) -> range:
        """Those of this worker, at least one."""
        return self.of_rank(self.rank)

    @property
    def slots(self) -> list[slice]:
        """The slots of each of its own virtual workers, counted from the first slot of the first one."""
        begins = [v * self.global_batch // self.count for v in range(self.own.start, self.own.stop + 1)]
        return [slice(a - begins[0], b - begins[0]) for a, b in zip(begins, begins[1:], strict=False)]
