"""Which rank keeps the others waiting, and what keeps it from its work: numbers of all ranks, and Linux's counters."""
