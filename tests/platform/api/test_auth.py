"""Who gets in, and how far."""

from contextlib import AsyncExitStack
from itertools import chain

import httpx
import pytest

from journeyman.platform.kit.settings import Settings
from support.api import Caller, RunningApi


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer jm_wrong", "Bearer wrong", "jm_x", "Bearer jm_\u00e9"],
)
async def test_without_a_key_that_exists(api: RunningApi, header: str | None) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app), base_url="http://api.test") as client:
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        response = await client.get("/v1/me", headers=headers)  # type: ignore[arg-type]
    assert response.status_code == 401
    assert response.json()["code"] == "unauthorized"
    assert response.headers["www-authenticate"].startswith("Bearer")


async def test_every_versioned_address_needs_a_key(api: RunningApi) -> None:
    paths = api.app.openapi()["paths"]
    operations = chain.from_iterable(
        ((method, path) for method in methods) for path, methods in paths.items() if path.startswith("/v1")
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app), base_url="http://api.test") as client:
        for method, path in operations:
            url = path.replace("{", "").replace("}", "")
            body = {"instruction": "x", "name": "x"} if method == "post" else None
            query = {"path": "x"} if path.endswith("files/content") else None
            response = await client.request(method, url, json=body, params=query)
            assert response.status_code in {401, 422}, (method, path, response.text)


async def test_me(caller: Caller) -> None:
    me = (await caller.get("/v1/me")).json()
    assert me["project"]["id"] == caller.project_id
    assert me["key"]["role"] == "admin"
    assert me["engine"] == "model"
    assert caller.key not in str(me)


async def test_the_internal_secret_is_no_key_of_the_api(caller: Caller, clean_settings: Settings) -> None:
    secret = clean_settings.internal_secret.get_secret_value()
    assert (await caller.get("/v1/me", headers={"Authorization": f"Bearer {secret}"})).status_code == 401


async def test_models_and_health(caller: Caller) -> None:
    models = (await caller.get("/v1/models")).json()["data"]
    assert {model["tier"] for model in models} == {"standard", "fast"}
    assert (await caller.get("/healthz")).json() == {"status": "ok"}
    ready = (await caller.get("/readyz")).json()
    assert ready["status"] == "ready"
    assert set(ready["checks"]) == {"database", "object_store", "temporal"}
    metrics = (await caller.get("/metrics")).text
    assert "journeyman_http_request_duration_seconds" in metrics
    assert 'journeyman_tasks{state="queued"}' in metrics


async def test_temporal_down_is_ready_but_degraded(clean_settings: Settings) -> None:
    from journeyman.platform.api.app import build_resources, create_app
    from support.api import free_port

    settings = clean_settings.model_copy(update={"temporal_address": f"127.0.0.1:{free_port()}"})
    app = create_app(settings)
    async with AsyncExitStack() as stack:
        app.state.resources = await build_resources(settings, stack)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as client:
            response = await client.get("/readyz")
    assert response.status_code == 200
    assert response.json()["status"] == "degraded"
    assert response.json()["checks"]["temporal"]["ok"] is False
