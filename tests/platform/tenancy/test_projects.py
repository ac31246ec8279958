"""Projects and keys over the API, and the wall between projects."""

import asyncio

import httpx
import pytest

from support.api import Caller, RunningApi, fields_of


def as_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_a_new_project_is_apart(operator: Caller) -> None:
    response = await operator.post("/v1/projects", json={"name": "second"})
    assert response.status_code == 201
    project = response.json()
    key = project["api_key"]["key"]
    task = await operator.submit()
    assert (await operator.get(f"/v1/tasks/{task['id']}", headers=as_key(key))).status_code == 404
    assert (await operator.get("/v1/tasks", headers=as_key(key))).json()["data"] == []
    assert (await operator.get("/v1/me", headers=as_key(key))).json()["project"]["id"] == project["id"]
    listed = (await operator.get("/v1/projects")).json()["data"]
    assert [each["id"] for each in listed] == [operator.project_id, project["id"]]
    assert "api_key" not in listed[1]


async def test_projects_of_another_organization_are_not_listed(api: RunningApi, operator: Caller) -> None:
    async with api.caller(role="operator") as other:
        listed = (await other.get("/v1/projects")).json()["data"]
    assert operator.project_id not in [project["id"] for project in listed]


async def test_a_key_is_shown_once_and_dies_at_once(caller: Caller) -> None:
    created = (await caller.post("/v1/api-keys", json={"name": "ci"})).json()
    assert created["role"] == "member"
    assert (await caller.get("/v1/me", headers=as_key(created["key"]))).status_code == 200
    listed = await caller.get("/v1/api-keys")
    assert created["key"] not in listed.text
    assert created["id"] in listed.text
    first = await caller.delete(f"/v1/api-keys/{created['id']}")
    again = await caller.delete(f"/v1/api-keys/{created['id']}")
    assert first.status_code == again.status_code == 200
    assert first.json()["revoked_at"] == again.json()["revoked_at"] is not None
    assert (await caller.get("/v1/me", headers=as_key(created["key"]))).status_code == 401


async def test_members_may_work_but_not_administer(api: RunningApi) -> None:
    async with api.caller(role="member") as member:
        await member.submit()
        for method, path, body in (
            ("GET", "/v1/api-keys", None),
            ("POST", "/v1/api-keys", {"name": "x", "role": "admin"}),
            ("DELETE", "/v1/api-keys/key_" + "0" * 32, None),
        ):
            response = await member.request(method, path, json=body)
            assert response.status_code == 403, path
            assert response.json()["code"] == "admin_required"


async def test_only_an_operator_key_lists_and_creates_projects_and_operator_keys(api: RunningApi) -> None:
    for role in ("admin", "member"):
        async with api.caller(role=role) as caller:
            for method in ("GET", "POST"):
                response = await caller.request(
                    method, "/v1/projects", json={"name": "x"} if method == "POST" else None
                )
                assert (response.status_code, response.json()["code"]) == (403, "operator_required")
    async with api.caller() as admin:
        response = await admin.post("/v1/api-keys", json={"name": "x", "role": "operator"})
        assert (response.status_code, response.json()["code"]) == (403, "operator_required")


async def test_operator_keys_are_out_of_a_project_admins_reach(api: RunningApi, operator: Caller) -> None:
    mine = (await operator.get("/v1/me")).json()["key"]["id"]
    async with api.caller(project_id=operator.project_id) as admin:
        assert mine not in (await admin.get("/v1/api-keys")).text
        assert (await admin.delete(f"/v1/api-keys/{mine}")).status_code == 404
    assert (await operator.delete(f"/v1/api-keys/{mine}")).json()["code"] == "last_operator_key"
    second = (await operator.post("/v1/api-keys", json={"name": "second", "role": "operator"})).json()
    assert (await operator.get("/v1/projects", headers=as_key(second["key"]))).status_code == 200
    assert (await operator.delete(f"/v1/api-keys/{mine}", headers=as_key(second["key"]))).status_code == 200


async def test_another_projects_key_cannot_be_revoked(api: RunningApi, caller: Caller) -> None:
    created = (await caller.post("/v1/api-keys", json={"name": "mine"})).json()
    async with api.caller() as other:
        assert (await other.delete(f"/v1/api-keys/{created['id']}")).status_code == 404
    assert (await caller.get("/v1/me", headers=as_key(created["key"]))).status_code == 200


async def test_two_admins_who_revoke_each_other_leave_one(api: RunningApi, caller: Caller) -> None:
    mine = (await caller.get("/v1/me")).json()["key"]["id"]
    assert (await caller.delete(f"/v1/api-keys/{mine}")).json()["code"] == "last_admin_key"
    second = (await caller.post("/v1/api-keys", json={"name": "second", "role": "admin"})).json()

    async def revoke(key: str, key_id: str) -> httpx.Response:
        return await caller.delete(f"/v1/api-keys/{key_id}", headers=as_key(key))

    responses = await asyncio.gather(revoke(caller.key, second["id"]), revoke(second["key"], mine))
    assert sorted(response.status_code for response in responses) in ([200, 401], [200, 409])


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "name"), ({"name": ""}, "name"), ({"name": "a\x00"}, "name"), ({"name": "x" * 101}, "name")],
)
async def test_bad_names(operator: Caller, body: dict[str, str], field: str) -> None:
    for path in ("/v1/projects", "/v1/api-keys"):
        assert fields_of(await operator.post(path, json=body)) == {field}
    assert fields_of(await operator.post("/v1/api-keys", json={"name": "x", "role": "owner"})) == {"role"}
