"""Which errors are tried again."""

import pytest
from sqlalchemy.exc import OperationalError

from journeyman.platform.inference.errors import ModelUnavailable
from journeyman.platform.kit.errors import Conflict, InvalidInput, JourneymanError, Unavailable
from journeyman.workflows import timing
from journeyman.workflows.failures import as_failure


@pytest.mark.parametrize("error", [InvalidInput("no"), Conflict("no")])
def test_what_cannot_pass_is_final(error: JourneymanError) -> None:
    failure = as_failure(error, 1)
    assert failure.non_retryable
    assert failure.type == error.code


def test_what_may_pass_is_tried_again_however_often() -> None:
    assert not as_failure(Unavailable("down"), 1_000).non_retryable


def test_an_engine_that_names_a_wait_is_asked_again_after_it() -> None:
    failure = as_failure(ModelUnavailable("busy", retry_after_s=7), 1)
    assert failure.next_retry_delay is not None
    assert failure.next_retry_delay.total_seconds() == 7


def test_a_wait_that_is_absurdly_long_is_cut() -> None:
    failure = as_failure(ModelUnavailable("busy", retry_after_s=1e9), 1)
    assert failure.next_retry_delay is not None
    assert failure.next_retry_delay.total_seconds() == 600


def test_a_database_that_is_away_is_waited_for() -> None:
    failure = as_failure(OperationalError("select", {}, ConnectionRefusedError()), 1_000)
    assert not failure.non_retryable
    assert failure.type == "database_unavailable"


def test_an_unforeseen_error_is_tried_a_few_times_and_its_text_is_not_shown() -> None:
    secret = ValueError("password=hunter2")
    assert not as_failure(secret, timing.MAX_UNEXPECTED_ATTEMPTS - 1).non_retryable
    failure = as_failure(secret, timing.MAX_UNEXPECTED_ATTEMPTS)
    assert failure.non_retryable
    assert "hunter2" not in failure.message
    assert "ValueError" in failure.message
