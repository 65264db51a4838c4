"""The parts of a step on a GPU, with events of a device that is played here: the host never waits for a recent one."""

from __future__ import annotations

from typing import Any

from hvdtrain.adapters.step_timer import BACKWARD, FORWARD, HOST_TO_DEVICE, OPTIMIZER, PARTS
from hvdtrain.adapters.torch.gpu_step_timer import _PENDING, GpuStepTimer


class Device:
    """Gives each event a time when it is recorded, in milliseconds; it is some steps behind the host."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made = self.recorded = 0
        self.waited: list[int] = []

    def new_event(self) -> Any:
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device, self._at, self._number = device, -1.0, -1

    def record(self) -> None:
        self._at, self._number = self._device.now, self._device.recorded
        self._device.recorded += 1

    def synchronize(self) -> None:
        self._device.waited.append(self._device.recorded - self._number)

    def elapsed_time(self, end: Event) -> float:
        assert self._number < end._number
        return end._at - self._at


def step(timer: GpuStepTimer, device: Device) -> None:
    timer.begin()
    device.now += 1
    timer.end(HOST_TO_DEVICE)
    device.now += 10
    timer.end(FORWARD)
    device.now += 15
    timer.sending()
    device.now += 5
    timer.sending()
    timer.end(BACKWARD)
    device.now += 7
    timer.end_wait()
    device.now += 2
    timer.end(OPTIMIZER)
    timer.end_step()
    device.now += 100


EXPECTED = {
    "host_to_device": 0.001,
    "forward": 0.010,
    "backward": 0.020,
    "allreduce": 0.007,
    "optimizer": 0.002,
    "allreduce_hidden": 0.005,
}


def test_times_are_the_devices() -> None:
    device = Device()
    timer = GpuStepTimer(device.new_event)
    for _ in range(3):
        step(timer, device)
    told = dict(zip(PARTS, timer.take(), strict=True))
    assert {name: round(seconds, 9) for name, seconds in told.items()} == {
        n: round(3 * s, 9) for n, s in EXPECTED.items()
    }
    sketches = timer.take_sketches()
    assert {name: round(sketch.summary().max, 9) for name, sketch in sketches.items()} == EXPECTED
    assert {sketch.count for sketch in sketches.values()} == {3}


def test_the_host_waits_for_old_events_only_and_their_number_is_bounded() -> None:
    device = Device()
    timer = GpuStepTimer(device.new_event)
    of_a_step = 7
    for _ in range(5 * _PENDING):
        step(timer, device)
    assert device.made <= of_a_step * (_PENDING + 2)
    assert min(device.waited) > of_a_step * (_PENDING - 1)
    assert round(timer.take()[FORWARD], 6) == round(5 * _PENDING * 0.010, 6)
