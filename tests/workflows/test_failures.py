"""Which errors are tried again."""

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from temporalio.testing import ActivityEnvironment

from journeyman.platform.inference.errors import ModelUnavailable
from journeyman.platform.kit.database import Database, create_engine
from journeyman.platform.kit.errors import Conflict, InvalidInput, JourneymanError, Unavailable
from journeyman.platform.sandboxes.errors import NoRoomForSandbox
from journeyman.workflows import timing
from journeyman.workflows.failures import UnexpectedErrors, as_failure


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


def test_attempts_that_only_waited_are_not_counted_as_unexpected() -> None:
    counter, info = UnexpectedErrors(), ActivityEnvironment.default_info()
    for _ in range(2 * timing.MAX_UNEXPECTED_ATTEMPTS):
        full = NoRoomForSandbox("full")
        assert not as_failure(full, 100, unexpected=counter.count(info, full)).non_retryable
    for number in range(1, timing.MAX_UNEXPECTED_ATTEMPTS + 1):
        assert counter.count(info, ValueError()) == number
    assert as_failure(ValueError(), 100, unexpected=number).non_retryable
    assert not as_failure(ValueError(), 100, unexpected=number - 1).non_retryable


async def test_a_database_that_is_starting_is_waited_for() -> None:
    """PostgreSQL refuses connections while it recovers; a server that says so is all it takes."""
    message = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
    refusal = b"E" + (len(message) + 4).to_bytes(4, "big") + message

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(b"N")  # no TLS
        await reader.read(1024)
        writer.write(refusal)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        database = Database(create_engine(f"postgresql+asyncpg://nobody@127.0.0.1:{port}/none"))
        with pytest.raises(Exception) as caught:
            async with database.transaction() as session:
                await session.execute(sa.text("SELECT 1"))
        await database.close()
    failure = as_failure(caught.value, 1_000)
    assert failure.type == "database_unavailable"
    assert not failure.non_retryable
