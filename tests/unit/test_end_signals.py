"""An interrupt that comes while modules are imported counts when they are there."""

from __future__ import annotations

import signal

import pytest

from hvdtrain.end_signals import interrupts_afterwards


def test_an_interrupt_counts_after_the_block() -> None:
    ran = []

    def interrupted() -> None:
        with interrupts_afterwards():
            signal.raise_signal(signal.SIGINT)
            ran.append(1)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ran == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_the_block_sets_stays() -> None:
    seen: list[int] = []
    try:
        with interrupts_afterwards():
            signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert seen == [signal.SIGINT]


def test_another_handler_is_not_replaced() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        with interrupts_afterwards():
            signal.raise_signal(signal.SIGINT)
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
