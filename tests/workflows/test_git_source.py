"""A workspace from git: a real repository over real HTTP, cloned in a real sandbox."""

import functools
import http.server
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from temporalio.testing import ActivityEnvironment

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.sandboxes.leases import Leases
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.tasks.models import Task
from journeyman.workflows.activities.preparation import PreparationActivities
from journeyman.workflows.types import Prepared, TaskRef
from support.rows import make_task


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name of the base class
        pass


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL of a repository, and its first commit. ``main`` has two commits, ``side`` one more, ``v1`` is a tag."""
    root = tmp_path_factory.mktemp("git")
    work = root / "work"
    work.mkdir()
    git(work, "init", "--quiet")
    (work / "a.txt").write_text("first\n")
    (work / ".hidden").write_text("kept\n")
    git(work, "add", ".")
    git(work, "commit", "--quiet", "-m", "first")
    first = git(work, "rev-parse", "HEAD")
    git(work, "tag", "v1")
    (work / "a.txt").write_text("second\n")
    git(work, "commit", "--quiet", "-am", "second")
    git(work, "checkout", "--quiet", "-b", "side")
    (work / "a.txt").write_text("side\n")
    git(work, "commit", "--quiet", "-am", "side")
    git(work, "checkout", "--quiet", "main")
    git(root, "clone", "--quiet", "--bare", str(work), "bare.git")
    git(root / "bare.git", "update-server-info")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/bare.git", first
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
async def driver(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalSandboxDriver]:
    driver = LocalSandboxDriver(tmp_path_factory.mktemp("s"))
    yield driver
    for sandbox_id in await driver.list_ids():
        await driver.release(sandbox_id)
    await driver.close()


async def prepare(
    database: Database, store: S3ObjectStore, driver: LocalSandboxDriver, workspace: dict[str, str], *, private: bool
) -> tuple[Prepared, Task]:
    task_id = await make_task(database)
    async with database.transaction() as session:
        task = await session.get_one(Task, task_id)
        task.workspace = {"source": "git", **workspace}
    snapshots = SnapshotStore(store)
    activities = PreparationActivities(
        database, Leases(database, driver, snapshots), snapshots, allow_private_addresses=private
    )
    ref = TaskRef(task_id=task_id, project_id=task.project_id)
    prepared = await ActivityEnvironment().run(activities.prepare, ref)
    async with database.transaction() as session:
        return prepared, (await session.scalars(sa.select(Task).where(Task.id == task_id))).one()


@pytest.mark.parametrize(
    ("ref", "content"),
    [(None, b"second\n"), ("side", b"side\n"), ("v1", b"first\n"), ("FIRST", b"first\n")],
)
async def test_clone(
    database: Database,
    object_store: S3ObjectStore,
    driver: LocalSandboxDriver,
    repository: tuple[str, str],
    ref: str | None,
    content: bytes,
) -> None:
    url, first = repository
    workspace = {"url": url} | ({} if ref is None else {"ref": first if ref == "FIRST" else ref})
    prepared, task = await prepare(database, object_store, driver, workspace, private=True)
    assert prepared.problem is None
    assert task.initial_snapshot is not None
    snapshots = SnapshotStore(object_store)
    assert await snapshots.read(task.project_id, task.initial_snapshot, "workspace/a.txt") == content
    assert await snapshots.read(task.project_id, task.initial_snapshot, "workspace/.hidden") == b"kept\n"
    manifest = await snapshots.manifest(task.project_id, task.initial_snapshot)
    assert any(entry.path == "workspace/.git/HEAD" for entry in manifest.entries)


@pytest.mark.parametrize("ref", ["no-such-ref", "--upload-pack=touch /workspace/x", "$(touch x)"])
async def test_a_ref_that_is_none_is_reported(
    database: Database,
    object_store: S3ObjectStore,
    driver: LocalSandboxDriver,
    repository: tuple[str, str],
    ref: str,
) -> None:
    prepared, task = await prepare(database, object_store, driver, {"url": repository[0], "ref": ref}, private=True)
    assert prepared.problem is not None
    assert "git clone" in prepared.problem
    assert task.initial_snapshot is None


async def test_private_addresses_are_refused_before_anything_is_fetched(
    database: Database, object_store: S3ObjectStore, driver: LocalSandboxDriver, repository: tuple[str, str]
) -> None:
    prepared, _ = await prepare(database, object_store, driver, {"url": repository[0]}, private=False)
    assert prepared.problem is not None
    assert "private address" in prepared.problem
