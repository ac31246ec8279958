"""Attempts at a step: joined, replaced, given up, and paid once."""

import asyncio
import json
from contextlib import suppress

import pytest
import sqlalchemy as sa

from journeyman.platform.inference.client import request_body
from journeyman.platform.inference.errors import ModelUnavailable
from journeyman.platform.inference.gateway import running
from journeyman.platform.inference.gateway.settlement import Settlements
from journeyman.platform.inference.port import CallIdentity
from journeyman.platform.ledger.pricing import PriceTable
from journeyman.platform.ledger.service import LedgerCall, LedgerService
from journeyman.platform.ledger.usage import TokenUsage
from journeyman.platform.tenancy import service as tenancy
from support.gateway import (
    CHAT,
    entries,
    entry_in_state,
    internal,
    until_joined,
)
from support.rows import make_project


async def test_one_entry_a_request_id(client, database, project, model_request):
    for number, attempt in enumerate((1, 2, 2)):
        messages = [{"role": "user", "content": f"Question {number}"}]
        await client.complete(model_request(identity=CallIdentity(project, "step", attempt), messages=messages))
    assert [(e.attempt, e.state) for e in await entries(database, project)] == [
        (1, "settled"),
        (2, "settled"),
        (3, "settled"),
    ]


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_step_asked_twice_at_once_is_sent_once(client, engine, database, project, model_request, attempt):
    release = asyncio.Event()

    async def handler(request):
        await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    first = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step"))))
    await asyncio.wait_for(engine.entered.wait(), 5)
    # The first caller may be frozen, with a connection that stands.
    second = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step", attempt))))
    await until_joined(1)
    release.set()
    assert [answer.text for answer in await asyncio.gather(first, second)] == ["Hello", "Hello"]
    assert len(engine.requests) == 1
    assert [(e.attempt, e.state, e.estimated) for e in await entries(database, project)] == [(1, "settled", False)]


async def test_a_newer_attempt_gets_the_answer_that_its_dead_caller_had_begun_to_read(
    http, gateway, client, engine, database, project, model_request, wire
):
    release = asyncio.Event()

    async def handler(request):
        response = await engine.open_stream(request)
        await response.write(wire.sse(wire.chunk({"content": "one "})))
        await release.wait()
        for event in (wire.chunk({"content": "two"}), wire.chunk({}, "stop"), wire.usage_chunk(), b"[DONE]"):
            await response.write(wire.sse(event))
        return response

    engine.handler = handler
    request = model_request(identity=CallIdentity(project, "step", 2))
    async with http.post(
        f"{gateway}/v1/chat/completions", data=request_body(request), headers=internal(project, step="step", attempt=1)
    ) as response:
        assert b"one" in await response.content.readany()
        response.close()
    again = asyncio.create_task(client.complete(request))
    await until_joined(1)
    assert not engine.cancelled.is_set()
    release.set()
    assert (await again).text == "one two"
    assert len(engine.requests) == 1
    assert [(e.attempt, e.state, e.estimated) for e in await entries(database, project)] == [(1, "settled", False)]


async def test_an_answer_that_ends_while_nobody_listens_is_there_for_who_comes_back(
    http, gateway, client, engine, database, project, model_request
):
    release = asyncio.Event()

    async def handler(request):
        await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    request = model_request(identity=CallIdentity(project, "step", 2))
    call = asyncio.create_task(
        http.post(f"{gateway}/v1/chat/completions", data=request_body(request), headers=internal(project, step="step"))
    )
    await asyncio.wait_for(engine.entered.wait(), 5)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    release.set()
    await entry_in_state(database, project, "settled")
    assert (await client.complete(request)).text == "Hello"
    assert len(engine.requests) == 1


async def test_a_newer_attempt_with_another_request_ends_the_one_before_it(
    client, engine, database, project, model_request
):
    release = asyncio.Event()

    async def handler(request):
        if len(engine.requests) == 1:
            await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    other = [{"role": "user", "content": "And what a person said meanwhile"}]
    frozen = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step", 1))))
    await asyncio.wait_for(engine.entered.wait(), 5)
    answer = await client.complete(model_request(identity=CallIdentity(project, "step", 2), messages=other))
    assert answer.text == "Hello"
    with pytest.raises(ModelUnavailable, match="given up"):
        await frozen
    release.set()
    # One answer was paid; what the other cost is an estimate, and says so.
    assert [(e.attempt, e.state, e.estimated) for e in await entries(database, project)] == [
        (1, "settled", True),
        (2, "settled", False),
    ]
    # An older attempt that comes late does not end a newer one, and gets the answer that is there.
    again = await client.complete(model_request(identity=CallIdentity(project, "step", 1), messages=other))
    assert again.text == "Hello"
    assert len(engine.requests) == 2


async def test_an_attempt_that_a_killed_gateway_left_becomes_ambiguous(client, database, project, model_request):
    dead = LedgerService(database, PriceTable())
    reservation = await dead.reserve(LedgerCall(project, "step", 1, "model", "m", 10, 20))
    await client.complete(model_request(identity=CallIdentity(project, "step", 2)))
    assert next((e.attempt, e.state, e.reserved_tokens) for e in await entries(database, project)) == (
        1,
        "ambiguous",
        30,
    )
    assert [e.state for e in await entries(database, project)] == ["ambiguous", "settled"]
    usage = await dead.usage_of_project(project)
    assert (usage.calls, usage.ambiguous_calls, usage.ambiguous_tokens) == (1, 1, 30)
    # Its end becomes known after all.
    assert await dead.release(reservation)
    assert not await dead.release(reservation)


async def test_a_step_scheduled_afresh_is_not_stopped_by_its_past(client, database, project, model_request):
    await LedgerService(database, PriceTable()).reserve(LedgerCall(project, "step", 1, "model", "m", 10, 20))
    await client.complete(model_request(identity=CallIdentity(project, "step", 1)))
    assert [(e.attempt, e.state) for e in await entries(database, project)] == [(1, "ambiguous"), (2, "settled")]


@pytest.mark.parametrize("how", ["a project's key", "cancelled", "nobody came back"])
@pytest.mark.parametrize("when", ["before the first chunk", "in the stream"])
async def test_a_call_that_nobody_wants_ends_the_engines_work(
    http, gateway, client, engine, database, project, wire, when, how, monkeypatch
):
    if how == "nobody came back":
        monkeypatch.setattr(running, "ORPHANED_S", 0.2)

    async def handler(request):
        if when == "in the stream":
            response = await engine.open_stream(request)
            for _ in range(5):
                await response.write(wire.sse(wire.chunk({"content": "word"})))
        await asyncio.Event().wait()

    engine.handler = handler
    body = {**CHAT, "stream": when == "in the stream"}
    headers = internal(project)
    if how == "a project's key":
        async with database.transaction() as session:
            headers = {"Authorization": f"Bearer {(await tenancy.create_key(session, project, 'k', 'member')).secret}"}
    call = asyncio.create_task(http.post(f"{gateway}/v1/chat/completions", json=body, headers=headers))
    await asyncio.wait_for(engine.entered.wait(), 5)
    if when == "in the stream":
        response = await call
        await response.content.readany()
        response.close()
    else:
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    if how == "cancelled":
        assert not engine.cancelled.is_set()
        await client.cancel(CallIdentity(project, "step-1"))
    await asyncio.wait_for(engine.cancelled.wait(), 2)
    entry = await entry_in_state(database, project, "settled")
    assert entry.estimated
    assert entry.prompt_tokens > 0
    assert entry.completion_tokens == (4 if when == "in the stream" else 0)


async def test_only_ones_own_call_can_be_cancelled(http, gateway, client, engine, database, project, model_request):
    release = asyncio.Event()

    async def handler(request):
        await release.wait()
        return await engine.plain(request)

    engine.handler = handler
    call = asyncio.create_task(client.complete(model_request(identity=CallIdentity(project, "step", 2))))
    await asyncio.wait_for(engine.entered.wait(), 5)
    url = f"{gateway}/v1/chat/completions/cancel"
    async with database.transaction() as session:
        key = await tenancy.create_key(session, project, "test", "member")
    theirs = {"Authorization": f"Bearer {key.secret}", "X-Journeyman-Request": "step"}
    async with http.post(url, headers=theirs) as response:
        assert response.status == 422
    # An older attempt's end, of a worker that was frozen, is not that of the newer one; nor is another step's.
    for headers in (internal(project, step="step", attempt=1), internal(project, step="other", attempt=2)):
        async with http.post(url, headers=headers) as response:
            assert await response.json() == {"cancelled": False}
    release.set()
    assert (await call).text == "Hello"


async def test_projects_may_use_the_same_request_id(client, database, project, model_request):
    other = await make_project(database)
    for owner in (project, other):
        await client.complete(model_request(identity=CallIdentity(owner, "same")))
        assert len(await entries(database, owner)) == 1


async def test_who_listens_to_a_call_that_is_given_up_is_told_so(http, gateway, engine, project, wire):
    async def handler(request):
        response = await engine.open_stream(request)
        await response.write(wire.sse(wire.chunk({"content": "one "})))
        await asyncio.Event().wait()

    engine.handler = handler
    headers = internal(project)
    body = {**CHAT, "stream": True}
    async with http.post(f"{gateway}/v1/chat/completions", json=body, headers=headers) as response:
        assert b"one" in await response.content.readany()
        async with http.post(f"{gateway}/v1/chat/completions/cancel", headers=headers) as cancelled:
            assert (await cancelled.json())["cancelled"] is True
        rest = await response.read()
    assert b"[DONE]" not in rest
    assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == "call_ended"


async def test_a_step_given_up_while_it_was_reserved_still_counts_as_one(gateway_settings, database, project):
    """What is given up so is released late: the step's next attempt waits for that, or neither would count."""
    ledger = LedgerService(database, PriceTable.from_settings(gateway_settings))
    settlements = Settlements(ledger)

    def call(step, attempt):
        return LedgerCall(project, step, attempt, "model", "engine-large", prompt_tokens=1, max_completion_tokens=1)

    await ledger.release(await ledger.reserve(call("before", 1)))
    account = sa.text("SELECT steps FROM budget_accounts WHERE scope = :project FOR UPDATE")
    waits = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    async def until_waiting(count):
        async with asyncio.timeout(10):
            while True:
                async with database.transaction() as session:
                    if await session.scalar(waits) >= count:
                        return
                await asyncio.sleep(0.01)

    async def lock_second():
        await second.execute(account, {"project": project})

    async with database.transaction() as first, database.transaction() as second:
        await first.execute(account, {"project": project})
        given_up = asyncio.create_task(settlements.reserve(call("step", 1)))
        await until_waiting(1)
        given_up.cancel()
        behind = asyncio.create_task(lock_second())
        await until_waiting(2)
        await first.commit()
        await behind
        # It is reserved now, and cannot be released yet.
        following = asyncio.create_task(settlements.reserve(call("step", 2)))
        await until_waiting(1)
    await ledger.settle(await following, TokenUsage(1, 0, 1))
    await settlements.drain(10)
    assert [(e.step_key, e.state, e.steps) for e in await entries(database, project) if e.step_key == "step"] == [
        ("step", "released", 1),
        ("step", "settled", 1),
    ]
    async with database.transaction() as session:
        assert await session.scalar(account, {"project": project}) == 1
