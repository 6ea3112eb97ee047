"""What a signal does to the command under way, and to the process that is ending."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tuner.cli.interrupts import hear_interrupts

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_without_a_signal_the_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with hear_interrupts() as stop:
        assert not stop.requested
    assert [signal.getsignal(number) for number in NUMBERS] == before


@pytest.mark.parametrize("number", NUMBERS)
def test_once_asked_further_signals_only_hasten(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither an exception nor death, within the block or after it, where the result is being saved."""
    with hear_interrupts(answer="Saving.") as stop:
        signal.raise_signal(number)
        assert (stop.requested, stop.immediate) == (True, False)
        signal.raise_signal(number)
        assert stop.immediate
    for other in NUMBERS:
        signal.raise_signal(other)
    assert capfd.readouterr().err.strip() == "Saving."


def test_one_signal_may_be_enough() -> None:
    with hear_interrupts(at_once=True) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.immediate
