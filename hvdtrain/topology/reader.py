"""How one platform tells a process its rank: a table of variables, and what to do if some are missing."""

from collections.abc import Callable
from dataclasses import dataclass

from hvdtrain.errors import UsageError
from hvdtrain.topology.facts import Env, Facts, Table, assume_place, read_table, require_consistent
from hvdtrain.topology.topology import FACTS, Topology

TELLING = ("rank", "size", "local_rank", "local_size")


def four_facts(rank: str, size: str, local_rank: str, local_size: str) -> Table:
    """The table of a platform that has one variable for each of these facts, and none for nodes."""
    return {"rank": (rank,), "size": (size,), "local_rank": (local_rank,), "local_size": (local_size,)}


def host_by(variable: str) -> Callable[[Facts, Env], tuple[str, ...]]:
    """For `Reader.hosts`: a variable that names this process's own host, which says all where there is one node."""
    return lambda facts, env: (env[variable],) if facts["num_nodes"].value == 1 and env.get(variable) else ()


@dataclass(frozen=True, slots=True)
class Reader:
    """How one platform's variables become a Topology: the table, `fill`, a check of rank and size, `place`, `hosts`.

    A variable of rank, size, local rank or local size is evidence of the platform; one of the other facts alone is not.
    """

    platform: str  # for people, such as "Open MPI"
    launcher: str  # the value of `Topology.launcher`
    table: Table
    # facts that the table gave → the same and those that an agreeing outer launcher tells
    fill: Callable[[Facts, Env], Facts] = lambda facts, _env: facts
    # rank, size and whatever else is known → all six facts
    place: Callable[[Facts, Env], Facts] = lambda facts, _env: assume_place(facts)
    # all six facts → host names in the order of node rank, or ()
    hosts: Callable[[Facts, Env], tuple[str, ...]] = lambda _facts, _env: ()
    # why the variables do not describe this process although they are set, or None when they do
    outside: Callable[[Env], str | None] = lambda _env: None
    context: tuple[str, ...] = ()  # further variables that `explain` shows
    named_by: str = ""  # a variable with the name of another launcher that speaks through the same variables

    def seen(self, env: Env) -> dict[str, str]:
        names = [variable for variables in self.table.values() for variable in variables]
        return {name: env[name] for name in (*names, *self.context) if name in env}

    def applies(self, env: Env) -> bool:
        """Whether there is evidence, complete or not, that this platform started the process."""
        telling = (variable for fact in TELLING for variable in self.table.get(fact, ()))
        return any(variable in env for variable in telling) and self.outside(env) is None

    def read(self, env: Env) -> Topology:
        """The topology; raises UsageError for partial evidence, bad numbers and contradictions."""
        facts = self.fill(read_table(self.table, env), env)
        self._require("rank", facts, env)
        self._require("size", facts, env)
        facts = self.place(facts, env)
        require_consistent(facts)
        values = {name: facts[name].value for name in FACTS}
        source = {name: facts[name].source for name in FACTS}
        launcher = env.get(self.named_by) or self.launcher
        return Topology(**values, hosts=self.hosts(facts, env), launcher=launcher, source=source)

    def _require(self, name: str, facts: Facts, env: Env) -> None:
        if name not in facts:
            seen = ", ".join(f"{variable}={value}" for variable, value in self.seen(env).items())
            missing = " or ".join(self.table[name])
            raise UsageError(
                f"{self.platform} variables are set ({seen}), but not {missing}.",
                f"Without its {name} this process would assume that it is the only one.",
                f"set {missing}, or unset the others if {self.platform} did not start this process.",
            )
