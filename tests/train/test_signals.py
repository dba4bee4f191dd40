import signal

import pytest

from minigpt.errors import InterruptedRunError
from minigpt.train.signals import StopSignals

NUMBERS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


@pytest.mark.parametrize(("number", "code"), NUMBERS)
def test_a_signal_outside_deferred_raises_at_once(number, code):
    with StopSignals(), pytest.raises(InterruptedRunError) as caught:
        signal.raise_signal(number)
    assert caught.value.exit_code == code
    assert str(caught.value) == f"stopped by {number.name}"


@pytest.mark.parametrize(("number", "code"), NUMBERS)
def test_a_signal_inside_deferred_is_remembered(number, code):
    with StopSignals() as signals, signals.deferred():
        assert signals.received is None
        signal.raise_signal(number)
        assert signals.received == number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_deferred_a_signal_raises_again(number):
    with StopSignals() as signals:
        with signals.deferred():
            pass
        with pytest.raises(InterruptedRunError):
            signal.raise_signal(number)


def test_an_error_inside_deferred_ends_it():
    with StopSignals() as signals:
        with pytest.raises(KeyError), signals.deferred():
            raise KeyError
        with pytest.raises(InterruptedRunError):
            signal.raise_signal(signal.SIGTERM)


def test_a_second_ctrl_c_raises():
    with StopSignals() as signals, signals.deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(InterruptedRunError) as caught:
            signal.raise_signal(signal.SIGINT)
    assert caught.value.exit_code == 130


def test_a_second_sigterm_waits_as_the_first():
    with StopSignals() as signals, signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == signal.SIGTERM


@pytest.mark.parametrize("fails", [False, True])
def test_the_former_handlers_are_put_back(fails):
    def handlers():
        return [signal.getsignal(number) for number, _ in NUMBERS]

    before = handlers()
    try:
        with StopSignals():
            assert all(new != old for new, old in zip(handlers(), before, strict=True))
            if fails:
                signal.raise_signal(signal.SIGTERM)
    except InterruptedRunError:
        assert fails
    assert handlers() == before
