"""Pauses grow, and a temporary failure is retried."""

from __future__ import annotations

import pytest

from deltasmelt.bronze.backoff import Backoff, tried_again


def test_pauses_double_to_limit_and_reset_on_success() -> None:
    backoff = Backoff(1.0, 4.0)
    for whole in (1, 2, 4, 4):
        assert whole / 2 <= backoff.seconds() <= whole
    backoff.worked()
    assert backoff.seconds() <= 1


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (2, 3), (9, 3)])
def test_call_is_retried_limited_times_before_last_error(failures: int, calls: int) -> None:
    numbers: list[int] = []

    @tried_again(KeyError, attempts=3, first=0.0, longest=0.0)
    def call(*, result: str) -> str:
        numbers.append(len(numbers))
        if len(numbers) <= failures:
            raise KeyError(len(numbers))
        return result

    if failures < calls:
        assert call(result="done") == "done"
    else:
        with pytest.raises(KeyError, match="3"):
            call(result="done")
    assert len(numbers) == calls


def test_another_error_is_raised_at_once() -> None:
    calls: list[int] = []

    @tried_again(KeyError, attempts=3, first=0.0, longest=0.0)
    def call() -> None:
        calls.append(1)
        raise ValueError("another")

    with pytest.raises(ValueError, match="another"):
        call()
    assert calls == [1]
