"""Which stragglers of a run are known: each is told once, and again where its cause, or whose link it is, turns out."""

from collections.abc import Sequence
from dataclasses import replace

from hvdtrain.slowness.causes import Cause, Straggler


class KnownStragglers:
    """Remembers who was slow, and who is slow now."""

    def __init__(self) -> None:
        self._found: dict[tuple[int | None, Cause], Straggler] = {}
        self._causes: dict[int | None, Cause] = {}  # of those that are slow now

    @property
    def found(self) -> list[Straggler]:
        """All of this run, in the order in which they were found."""
        return list(self._found.values())

    @property
    def has_slow_link(self) -> bool:
        """Whether the slow link of a rank is known."""
        return any(cause == "slow link" and rank is not None for rank, cause in self._found)

    def cause(self, rank: int) -> Cause:
        """Why a rank that is slow now was slow before; "unknown" where it was not."""
        return self._causes.get(rank, "unknown")

    def note(self, seen: Sequence[Straggler]) -> list[Straggler]:
        """Remember who is slow now; returns those that were not known."""
        news = []
        for straggler in seen:
            rank, cause = straggler.rank, straggler.cause
            if (guess := self._guess_before(rank, cause)) is not None:
                straggler = replace(straggler, since_step=self._found.pop(guess).since_step)
            before = self._found.get((rank, cause))
            if before is None:
                news.append(straggler)
            else:
                straggler = replace(straggler, since_step=before.since_step)
            self._found[rank, cause] = straggler
        self._causes = {straggler.rank: straggler.cause for straggler in seen}
        return news

    def _guess_before(self, rank: int | None, cause: Cause) -> tuple[int | None, Cause] | None:
        """What was found of it while its cause, or whose link it is, could not be told."""
        whose: tuple[int | None, Cause] = (None, "slow link")
        if cause == "slow link" and rank is not None:
            return whose if whose in self._found else None
        return (rank, "unknown") if cause != "unknown" and self._causes.get(rank) == "unknown" else None
