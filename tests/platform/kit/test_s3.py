"""The object store over a client whose clock is wrong."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from journeyman.platform.kit import clock
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.kit.s3_clock import _ServersClock
from journeyman.platform.kit.settings import Settings


@pytest.fixture(autouse=True)
def right_again() -> Iterator[None]:
    yield
    _ServersClock.ahead = timedelta()


@pytest.mark.parametrize("hours", [1, -1, 24 * 365])
async def test_a_wrong_clock_is_corrected(
    settings: Settings, object_store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    right = clock.now
    store = S3ObjectStore.from_settings(settings)
    await store.put("clock/a", b"early")
    monkeypatch.setattr(clock, "now", lambda: right() + timedelta(hours=hours))
    # The first to meet it may be a HEAD, whose refusal has no body to say why.
    assert await store.exists("clock/a")
    await store.put("clock/b", b"late")
    assert await object_store.get("clock/b") == b"late"
    # And back, when somebody sets it right.
    monkeypatch.setattr(clock, "now", right)
    assert await store.list_keys("clock/") == ["clock/a", "clock/b"]


async def test_a_large_upload_meets_the_wrong_clock(
    settings: Settings, object_store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = clock.now
    store = S3ObjectStore.from_settings(settings)
    monkeypatch.setattr(clock, "now", lambda: right() + timedelta(hours=1))
    await store.put("clock/large", bytes(8 * 1024 * 1024))
    assert len(await object_store.get("clock/large")) == 8 * 1024 * 1024


async def test_only_a_large_upload_asks_first(settings: Settings, object_store: S3ObjectStore) -> None:
    store = S3ObjectStore.from_settings(settings)
    asked: list[bool] = []

    def note(request: Any, **_: Any) -> None:
        asked.append("Expect" in request.headers)

    store._client.meta.events.register("before-send.s3.PutObject", note)
    for size in (0, 1000, 128 * 1024, 128 * 1024 + 1):
        await store.put(f"asked/{size}", bytes(size))
        assert await object_store.get(f"asked/{size}") == bytes(size)
    assert asked == [False, False, False, True]


async def test_a_wrong_key_is_not_taken_for_a_wrong_clock(settings: Settings, object_store: S3ObjectStore) -> None:
    await object_store.put("clock/c", b"")
    stranger = settings.model_copy(update={"s3_secret_key": type(settings.s3_secret_key)("wrong")})
    with pytest.raises(Unavailable, match="refused"):
        await S3ObjectStore.from_settings(stranger).get("clock/c")
    assert _ServersClock.ahead == timedelta()
