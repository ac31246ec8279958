"""What a task shows of its work: plan, checkpoints, files, differences, artifacts, receipts, usage."""

import io
import tarfile
from dataclasses import dataclass
from decimal import Decimal

import pytest
import sqlalchemy as sa

from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.artifacts.models import Receipt
from journeyman.platform.checkpoints import repository as checkpoints
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.object_store import ObjectStore, put_blob
from journeyman.platform.ledger.models import LedgerEntry
from journeyman.platform.plans import repository as plans
from journeyman.platform.plans.models import Subtask
from journeyman.platform.tasks.models import Task
from support.api import Caller, RunningApi, fields_of
from support.rows import make_task


def tree(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_dot_", "."))
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@dataclass
class Work:
    """A task with a first and a second snapshot, and a checkpoint at each."""

    task_id: str
    first: str
    second: str
    checkpoints: list[str]


@pytest.fixture
async def work(api: RunningApi, caller: Caller, database: Database) -> Work:
    store = api.resources[SnapshotStore]
    before = await store.from_archive(
        caller.project_id,
        tree(src__a_dot_py=b"one\n", gone=b"bye\n", image=b"\x89PNG\x00\x01", page_dot_html=b"<script>"),
    )
    after = await store.from_archive(
        caller.project_id,
        tree(src__a_dot_py=b"one\ntwo\n", new=b"hi\n", image=b"\x89PNG\x00\x02", page_dot_html=b"<script>"),
    )
    task_id = await make_task(database, caller.project_id)
    ids = []
    for number, snapshot in enumerate((before, after), 1):
        async with database.transaction() as session:
            ids.append(
                await checkpoints.create(
                    session,
                    checkpoints.Point(
                        project_id=caller.project_id,
                        task_id=task_id,
                        thread_id=None,
                        subtask_id=None,
                        plan_revision=1,
                        snapshot=snapshot.digest,
                        step_key=f"{task_id}:{number}",
                    ),
                )
            )
    async with database.transaction() as session:
        await session.execute(
            sa.update(Task)
            .where(Task.id == task_id)
            .values(initial_snapshot=before.digest, head_snapshot=before.digest)
        )
    return Work(task_id, before.digest, after.digest, ids)


async def test_checkpoints(caller: Caller, work: Work) -> None:
    page = (await caller.get(f"/v1/tasks/{work.task_id}/checkpoints?limit=1")).json()
    assert [checkpoint["id"] for checkpoint in page["data"]] == [work.checkpoints[1]]
    rest = (await caller.get(f"/v1/tasks/{work.task_id}/checkpoints", params={"cursor": page["next_cursor"]})).json()
    assert [checkpoint["id"] for checkpoint in rest["data"]] == [work.checkpoints[0]]
    assert rest["next_cursor"] is None
    assert rest["data"][0]["snapshot"] == work.first
    bad = await caller.get(f"/v1/tasks/{work.task_id}/checkpoints?cursor=x")
    assert fields_of(bad) == {"cursor"}


async def test_files_at_each_point(caller: Caller, work: Work) -> None:
    async def paths(**query: str) -> list[str]:
        response = await caller.get(f"/v1/tasks/{work.task_id}/files", params=query)
        assert response.status_code == 200, response.text
        return [file["path"] for file in response.json()["data"] if file["kind"] == "file"]

    first = ["gone", "image", "page.html", "src/a.py"]
    second = ["image", "new", "page.html", "src/a.py"]
    assert await paths() == await paths(checkpoint="initial") == await paths(checkpoint="head") == first
    assert await paths(checkpoint=work.checkpoints[0]) == first
    assert await paths(checkpoint=work.checkpoints[1]) == await paths(checkpoint="latest") == second
    for path in ("src", "src/", "/src", "src/a.py", "/workspace/src"):
        assert await paths(path=path) == ["src/a.py"]
    found = (await caller.get(f"/v1/tasks/{work.task_id}/files?path=src/a.py")).json()["data"][0]
    assert found["size"] == 4
    assert found["mode"] == "0644"


@pytest.mark.parametrize(
    "path", ["nothing", "../a", "src/../gone", "/etc/passwd", "/artifacts/x", "sr", "a\x00b", "src/a.py/x", "." * 4000]
)
async def test_paths_that_are_not_there(caller: Caller, work: Work, path: str) -> None:
    for address in ("files", "files/content"):
        response = await caller.get(f"/v1/tasks/{work.task_id}/{address}", params={"path": path})
        assert response.status_code == 404, response.text


async def test_contents_are_never_run_by_a_browser(caller: Caller, work: Work) -> None:
    response = await caller.get(f"/v1/tasks/{work.task_id}/files/content?path=page.html")
    assert response.content == b"<script>"
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in response.headers["content-security-policy"]
    assert (await caller.get(f"/v1/tasks/{work.task_id}/files/content?path=src")).json()["code"] == "not_a_file"
    second = f"/v1/tasks/{work.task_id}/files/content?path=src/a.py&checkpoint={work.checkpoints[1]}"
    assert (await caller.get(second)).content == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("range_", "status", "content"),
    [
        ("bytes=0-2", 206, b"one"),
        ("bytes=2-", 206, b"e\n"),
        ("bytes=-2", 206, b"e\n"),
        ("bytes=0-999", 206, b"one\n"),
        ("bytes=-999", 206, b"one\n"),
        ("bytes=4-", 416, b""),
        ("bytes=-0", 416, b""),
        ("bytes=2-1", 200, b"one\n"),
        ("bytes=0-0,2-3", 200, b"one\n"),
        ("lines=1-2", 200, b"one\n"),
        ("bytes=-", 200, b"one\n"),
    ],
)
async def test_ranges(caller: Caller, work: Work, range_: str, status: int, content: bytes) -> None:
    response = await caller.get(f"/v1/tasks/{work.task_id}/files/content?path=src/a.py", headers={"Range": range_})
    assert response.status_code == status
    if status != 416:
        assert response.content == content
    if status == 206:
        assert response.headers["content-range"].endswith("/4")


async def test_diff(caller: Caller, work: Work) -> None:
    base = f"/v1/tasks/{work.task_id}/diff"
    assert (await caller.get(base)).json()["data"] == []
    found = (await caller.get(f"{base}?to=latest")).json()
    assert {change["path"]: (change["kind"], change["binary"]) for change in found["data"]} == {
        "gone": ("deleted", False),
        "image": ("modified", True),
        "new": ("added", False),
        "src/a.py": ("modified", False),
    }
    assert "+two" in found["patch"]
    assert (found["from_snapshot"], found["to_snapshot"], found["truncated"]) == (work.first, work.second, False)
    back = (await caller.get(f"{base}?from={work.checkpoints[1]}&to={work.checkpoints[0]}")).json()
    assert "-two" in back["patch"]
    patch = await caller.get(f"{base}?to=latest", headers={"Accept": "text/x-diff"})
    assert patch.headers["content-type"].startswith("text/x-diff")
    assert patch.text == found["patch"]


async def test_points_that_name_nothing(caller: Caller, work: Work) -> None:
    base = f"/v1/tasks/{work.task_id}"
    assert (await caller.get(f"{base}/files?checkpoint=ckpt_{'0' * 32}")).status_code == 404
    assert fields_of(await caller.get(f"{base}/files?checkpoint=yesterday")) == {"checkpoint"}
    assert fields_of(await caller.get(f"{base}/diff?from=x")) == {"from"}
    assert fields_of(await caller.get(f"{base}/diff?since=x")) == {"since"}


async def test_a_checkpoint_of_another_task_is_not_one_of_this(caller: Caller, work: Work, database: Database) -> None:
    other = await make_task(database, caller.project_id)
    assert (await caller.get(f"/v1/tasks/{other}/files?checkpoint={work.checkpoints[0]}")).status_code == 404
    assert (await caller.get(f"/v1/tasks/{other}/files")).json()["code"] == "no_workspace_yet"


async def test_plan(caller: Caller, work: Work, database: Database) -> None:
    path = f"/v1/tasks/{work.task_id}/plan"
    assert (await caller.get(path)).json()["code"] == "no_plan_yet"
    for revision in (1, 2):
        async with database.transaction() as session:
            await plans.add_revision(
                session,
                project_id=caller.project_id,
                task_id=work.task_id,
                revision=revision,
                subtasks=[
                    {"id": "s1", "title": "One", "instructions": "do", "depends_on": [], "acceptance": ["true"]},
                    {"id": "s2", "title": "Two", "instructions": "do", "depends_on": ["s1"], "acceptance": []},
                ],
                acceptance=["pytest -q"],
                reason=None if revision == 1 else "It did not work.",
            )
    async with database.transaction() as session:
        await session.execute(
            sa.update(Subtask)
            .where(Subtask.task_id == work.task_id, Subtask.revision == 2, Subtask.subtask_id == "s1")
            .values(state="running", rounds=1)
        )
        await session.execute(sa.update(Task).where(Task.id == work.task_id).values(plan_revision=2))
    newest = (await caller.get(path)).json()
    assert (newest["revision"], newest["reason"], newest["acceptance"]) == (2, "It did not work.", ["pytest -q"])
    assert [(each["id"], each["state"], each["rounds"]) for each in newest["subtasks"]] == [
        ("s1", "running", 1),
        ("s2", "pending", 0),
    ]
    assert [each["revision"] for each in newest["revisions"]] == [1, 2]
    assert (await caller.get(f"{path}?revision=1")).json()["subtasks"][0]["state"] == "pending"
    assert (await caller.get(f"{path}?revision=3")).status_code == 404
    async with database.transaction() as session:
        await session.execute(sa.update(Task).where(Task.id == work.task_id).values(plan_revision=1))
    in_force = (await caller.get(path)).json()
    assert (in_force["revision"], [each["revision"] for each in in_force["revisions"]]) == (1, [1, 2])
    assert fields_of(await caller.get(f"{path}?revision=0")) == {"revision"}


async def test_artifacts(api: RunningApi, caller: Caller, work: Work, database: Database) -> None:
    made = {}
    for kind, name, media_type, data in (
        ("patch", "changes.patch", "text/x-diff", b"--- a\n"),
        ("file", 'dir/r\u00e9sum\u00e9".html', "text/html", b"<script>alert(1)</script>"),
        ("file", "big", "application/octet-stream", bytes(9_000_000)),
        ("file", "empty", "application/octet-stream", b""),
        ("tool_output", "output", "text/plain", b"x"),
    ):
        digest = await put_blob(api.resources[ObjectStore], caller.project_id, data)
        async with database.transaction() as session:
            made[name] = await artifacts.add(
                session,
                project_id=caller.project_id,
                task_id=work.task_id,
                kind=kind,
                name=name,
                media_type=media_type,
                size=len(data),
                digest=digest,
                key=name,
            )
    base = f"/v1/tasks/{work.task_id}/artifacts"
    listed = (await caller.get(base)).json()["data"]
    assert {artifact["name"] for artifact in listed} == set(made) - {"output"}
    assert [each["name"] for each in (await caller.get(f"{base}?kind=tool_output")).json()["data"]] == ["output"]
    assert fields_of(await caller.get(f"{base}?kind=nope")) == {"kind"}
    page = await caller.get(f"/v1/artifacts/{made[listed[1]['name']]}/content")
    assert page.content == b"<script>alert(1)</script>"
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    assert page.headers["content-disposition"].count('"') == 2
    big = await caller.get(f"/v1/artifacts/{made['big']}/content")
    assert len(big.content) == 9_000_000
    part = await caller.get(f"/v1/artifacts/{made['big']}/content", headers={"Range": "bytes=4000000-8999998"})
    assert (part.status_code, len(part.content)) == (206, 4_999_999)
    assert (await caller.get(f"/v1/artifacts/{made['empty']}/content")).content == b""
    async with api.caller() as other:
        assert (await other.get(f"/v1/artifacts/{made['big']}/content")).status_code == 404
    assert (await caller.get("/v1/artifacts/art_x/content")).status_code == 404


async def test_receipts_and_usage(caller: Caller, work: Work, database: Database) -> None:
    async with database.transaction() as session:
        session.add(
            Receipt(
                id=new_id("receipt"),
                project_id=caller.project_id,
                task_id=work.task_id,
                attempt=1,
                position=0,
                command="pytest -q",
                snapshot=work.first,
                exit_code=None,
                passed=False,
                output_artifact_id="art_x",
                duration_s=Decimal("1.250"),
            )
        )
        session.add(
            LedgerEntry(
                id=new_id("ledger_entry"),
                project_id=caller.project_id,
                task_id=work.task_id,
                thread_id=None,
                request_id=f"{work.task_id}/1",
                step_key=f"{work.task_id}/1",
                attempt=1,
                kind="model",
                model="m",
                state="settled",
                estimated=False,
                reserved_tokens=0,
                reserved_cost_usd=Decimal(0),
                prompt_tokens=100,
                cached_tokens=40,
                completion_tokens=10,
                cost_usd=Decimal("0.00012"),
                seconds=Decimal(0),
                created_at=now(),
                settled_at=now(),
            )
        )
    receipt = (await caller.get(f"/v1/tasks/{work.task_id}/receipts")).json()["data"][0]
    assert (receipt["passed"], receipt["exit_code"], receipt["duration_s"]) == (False, None, 1.25)
    of_task = (await caller.get(f"/v1/tasks/{work.task_id}/usage")).json()
    assert (of_task["tokens"], of_task["prompt_tokens"], of_task["cached_tokens"]) == (110, 100, 40)
    assert Decimal(of_task["cost_usd"]) == Decimal("0.00012")
    assert of_task["models"][0]["model"] == "m"
    assert [each["level"] for each in of_task.pop("budgets")] == ["task", "project"]
    of_project = (await caller.get("/v1/usage")).json()
    assert [each["level"] for each in of_project.pop("budgets")] == ["project"]
    assert of_project == of_task
