"""A workspace from git: a real repository over real HTTP, cloned in a real sandbox, also by hostile tenants and servers."""

import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.testing import ActivityEnvironment

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.egress.addresses import AddressPolicy
from journeyman.platform.egress.destinations import Resolver, resolve_host
from journeyman.platform.events.models import Event
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.leases.admission import Capacity, machine_memory
from journeyman.platform.leases.service import Leases
from journeyman.platform.sandboxes.local import LocalSandboxDriver
from journeyman.platform.tasks.models import Task
from journeyman.workflows.activities.preparation import PreparationActivities
from journeyman.workflows.types import Prepared, TaskRef
from support.git_server import GitServer, git, git_server
from support.rows import make_task

MACHINE = AddressPolicy(private=True, machine=True)
"""What loopback servers of tests need."""


@dataclass
class Repository:
    server: GitServer
    url: str
    first: str
    """Its first commit."""
    lonely: str
    """A commit that is part of no branch."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """``main`` has two commits, ``side`` one more, ``v1`` is a tag of the first."""
    root = tmp_path_factory.mktemp("git")
    work = root / "work"
    work.mkdir()
    git(work, "init", "--quiet")
    (work / "a.txt").write_text("first\n")
    (work / ".hidden").write_text("kept\n")
    (work / "link").symlink_to("a.txt")
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
    bare = root / "bare.git"
    lonely = git(bare, "commit-tree", "-p", first, "-m", "lonely", f"{first}^{{tree}}")
    with git_server(root) as server:
        yield Repository(server, server.url("bare.git"), first, lonely)


@pytest.fixture
async def driver(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalSandboxDriver]:
    driver = LocalSandboxDriver(tmp_path_factory.mktemp("s"))
    yield driver
    assert await driver.list_ids() == [], "the fetch leaves no sandbox behind"
    await driver.close()


@dataclass
class Preparing:
    database: Database
    store: S3ObjectStore
    driver: LocalSandboxDriver

    async def __call__(
        self,
        url: str,
        ref: str | None = None,
        *,
        policy: AddressPolicy = MACHINE,
        resolver: Resolver = resolve_host,
        environment: dict[str, Any] | None = None,
    ) -> tuple[Prepared, Task]:
        task_id = await make_task(self.database)
        async with self.database.transaction() as session:
            task = await session.get_one(Task, task_id)
            task.workspace = {"source": "git", "url": url} | ({} if ref is None else {"ref": ref})
            task.environment = environment or {}
        snapshots = SnapshotStore(self.store)
        activities = PreparationActivities(
            self.database,
            Leases(self.database, self.driver, snapshots, Capacity(machine_memory())),
            snapshots,
            addresses=policy,
            resolver=resolver,
        )
        prepared = await ActivityEnvironment().run(
            activities.prepare, TaskRef(task_id=task_id, project_id=task.project_id)
        )
        async with self.database.transaction() as session:
            return prepared, (await session.scalars(sa.select(Task).where(Task.id == task_id))).one()

    async def file(self, task: Task, path: str) -> bytes:
        assert task.initial_snapshot is not None
        return await SnapshotStore(self.store).read(task.project_id, task.initial_snapshot, f"workspace/{path}")

    async def paths(self, task: Task) -> set[str]:
        assert task.initial_snapshot is not None
        manifest = await SnapshotStore(self.store).manifest(task.project_id, task.initial_snapshot)
        return {entry.path.removeprefix("workspace/") for entry in manifest.entries}


@pytest.fixture
def prepare(database: Database, object_store: S3ObjectStore, driver: LocalSandboxDriver) -> Preparing:
    return Preparing(database, object_store, driver)


class TestWhatArrives:
    @pytest.mark.parametrize(
        ("ref", "content", "head"),
        [
            (None, b"second\n", b"ref: refs/heads/main\n"),
            ("main", b"second\n", b"ref: refs/heads/main\n"),
            ("side", b"side\n", b"ref: refs/heads/side\n"),
            ("v1", b"first\n", None),
            ("FIRST", b"first\n", None),
            ("SHORT", b"first\n", None),
            ("LONELY", b"first\n", None),
        ],
    )
    async def test_branch_tag_or_commit_with_history(
        self, prepare: Preparing, repository: Repository, ref: str | None, content: bytes, head: bytes | None
    ) -> None:
        commits = {"FIRST": repository.first, "SHORT": repository.first[:8], "LONELY": repository.lonely}
        prepared, task = await prepare(repository.url, commits.get(ref, ref) if ref else None)
        assert prepared.problem is None
        assert await prepare.file(task, "a.txt") == content
        assert await prepare.file(task, ".hidden") == b"kept\n"
        configuration = (await prepare.file(task, ".git/config")).decode()
        assert repository.url in configuration
        assert "proxy" not in configuration
        detached = f"{repository.lonely if ref == 'LONELY' else repository.first}\n".encode()
        assert await prepare.file(task, ".git/HEAD") == (head or detached)
        assert not any(path.startswith(".git/hooks/") for path in await prepare.paths(task))

    async def test_an_empty_repository_is_an_empty_workspace(self, prepare: Preparing, repository: Repository) -> None:
        git(repository.server.root, "init", "--quiet", "--bare", "empty.git")
        prepared, task = await prepare(repository.server.url("empty.git"))
        assert prepared.problem is None
        assert all(path.startswith(".git") for path in await prepare.paths(task))

    @pytest.mark.parametrize("ref", ["no-such-ref", "--upload-pack=touch /workspace/x", "$(touch x)", "0" * 40])
    async def test_a_ref_that_is_none_is_reported(self, prepare: Preparing, repository: Repository, ref: str) -> None:
        prepared, task = await prepare(repository.url, ref)
        assert prepared.problem is not None
        assert "git clone" in prepared.problem
        assert task.initial_snapshot is None


class TestHostileTasks:
    """What a task says about its environment or its address never reaches the program that fetches."""

    async def test_no_variable_of_the_task_has_any_effect(self, prepare: Preparing, repository: Repository) -> None:
        canary = _Canary()
        touch = f"touch /workspace/owned; exec 3<>/dev/tcp/127.0.0.1/{canary.port}"
        environment = {
            "BASH_ENV": f"$({touch})",
            "ENV": f"$({touch})",
            "SHELLOPTS": "xtrace",
            "PS4": f"$({touch})",
            "PROMPT_COMMAND": touch,
            "BASH_FUNC_git%%": f"() {{ {touch}; }}",
            "PATH": "/workspace",
            "HOME": "/workspace",
            "LD_PRELOAD": "/workspace/no.so",
            "LD_AUDIT": "/workspace/no.so",
            "LD_LIBRARY_PATH": "/workspace",
            "PYTHONSTARTUP": "/workspace/x.py",
            "PYTHONPATH": "/workspace",
            "PYTHONHOME": "/workspace",
            "GIT_EXEC_PATH": "/workspace",
            "GIT_SSH_COMMAND": touch,
            "GIT_ASKPASS": "/workspace/askpass",
            "GIT_EXTERNAL_DIFF": touch,
            "GIT_PROXY_COMMAND": touch,
            "GIT_TEMPLATE_DIR": "/workspace",
            "GIT_DIR": "/workspace/other",
            "GIT_CONFIG_GLOBAL": "/workspace/config",
            "GIT_CONFIG_COUNT": "3",
            "GIT_CONFIG_KEY_0": "core.fsmonitor",
            "GIT_CONFIG_VALUE_0": touch,
            "GIT_CONFIG_KEY_1": "url.http://127.0.0.1:1/.insteadOf",
            "GIT_CONFIG_VALUE_1": repository.url,
            "GIT_CONFIG_KEY_2": "http.proxy",
            "GIT_CONFIG_VALUE_2": f"http://127.0.0.1:{canary.port}",
            "GIT_CONFIG_PARAMETERS": "'core.hooksPath'='/workspace'",
            "GIT_ALLOW_PROTOCOL": "ext:file:ssh:git:http:https",
            "http_proxy": f"http://127.0.0.1:{canary.port}",
            "https_proxy": f"http://127.0.0.1:{canary.port}",
            "ALL_PROXY": f"socks5h://127.0.0.1:{canary.port}",
            "no_proxy": "*",
            "NO_PROXY": "*",
            "SSL_CERT_FILE": "/workspace/x.pem",
            "GIT_SSL_NO_VERIFY": "1",
            "CURL_HOME": "/workspace",
            "XDG_CONFIG_HOME": "/workspace",
            "GCONV_PATH": "/workspace",
        }
        snapshots: list[set[str]] = []
        for variables in ({}, environment):
            # Preparation also runs the task's own checks, which may see the variables: only the fetch is looked at.
            fetched = await _fetch_only(prepare, repository.url, variables)
            snapshots.append(fetched)
        assert snapshots[0] == snapshots[1]
        assert "workspace/owned" not in snapshots[1]
        assert canary.connections() == 0

    @pytest.mark.parametrize(
        "url",
        [
            "ext::sh -c touch% /workspace/x",
            "file:///etc",
            "/etc",
            "-oProxyCommand=touch /workspace/x",
            "--upload-pack=touch",
            "ssh://git@example.org/x",
            "git://example.org/x",
            "https://user:secret@example.org/x",
            "https://",
            "https://exa mple.org/",
            "https://-host/",
            "https://example.org:99999/",
            "https://example.org:0/",
        ],
    )
    async def test_addresses_that_are_no_plain_url_are_refused(self, prepare: Preparing, url: str) -> None:
        prepared, task = await prepare(url, resolver=_never)
        assert prepared.problem is not None
        assert "secret" not in prepared.problem
        assert task.initial_snapshot is None


async def _fetch_only(prepare: Preparing, url: str, variables: dict[str, str]) -> set[str]:
    """The paths of the snapshot that the fetch makes, before anything else runs."""
    from journeyman.workflows.activities.preparation import _Report

    task_id = await make_task(prepare.database)
    async with prepare.database.transaction() as session:
        task = await session.get_one(Task, task_id)
        task.environment = {"env": variables}
    snapshots = SnapshotStore(prepare.store)
    leases = Leases(prepare.database, prepare.driver, snapshots, Capacity(machine_memory()))
    activities = PreparationActivities(prepare.database, leases, snapshots, addresses=MACHINE)
    report = _Report()
    digest = await activities._clone(task, url, None, report)
    assert report.problems == []
    assert digest is not None
    return {entry.path for entry in (await snapshots.manifest(task.project_id, digest)).entries}


async def test_the_checks_of_the_platform_do_not_see_the_variables_of_the_task(
    prepare: Preparing, repository: Repository
) -> None:
    lie = "command() { :; }; df() { printf 'x\\nx 1 1 999999 x x'; }; python3() { :; }"
    environment = {"env": {"BASH_ENV": "/workspace/lie", "PATH": "/nowhere", "LD_PRELOAD": "/workspace/none.so"}}
    prepared, task = await prepare(
        repository.url, environment={**environment, "setup": [f"echo '{lie}' > /workspace/lie"]}
    )
    assert prepared.problem is None
    async with prepare.database.transaction() as session:
        query = sa.select(Event.data).where(Event.task_id == task.id, Event.type == "environment.checked")
        [facts] = (await session.scalars(query)).all()
    assert facts["tools"] == ["bash", "python3"]
    assert facts["network"] == "closed"
    assert facts["disk_free_mb"] < 999_999


class TestAddresses:
    @pytest.mark.parametrize(
        "policy", [AddressPolicy(), AddressPolicy(private=True)], ids=["public only", "private too"]
    )
    async def test_this_machine_is_reached_only_where_that_is_said(
        self, prepare: Preparing, repository: Repository, policy: AddressPolicy
    ) -> None:
        before = len(repository.server.requests)
        prepared, _ = await prepare(repository.url, policy=policy)
        assert prepared.problem is not None
        assert "own machine" in prepared.problem
        assert len(repository.server.requests) == before

    async def test_a_name_that_changes_its_address_reaches_the_first_one(
        self, prepare: Preparing, repository: Repository
    ) -> None:
        asked: list[str] = []

        async def rebinding(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

        url = repository.server.url("bare.git", host="rebind.example.org")
        prepared, task = await prepare(url, resolver=rebinding)
        assert prepared.problem is None
        assert await prepare.file(task, "a.txt") == b"second\n"
        assert asked == ["rebind.example.org"]
        assert repository.server.hosts[-1] == f"rebind.example.org:{repository.server.port}"

    async def test_one_bad_address_among_good_ones_refuses_all(self, prepare: Preparing) -> None:
        async def mixed(host: str, port: int) -> Sequence[str]:
            del host, port
            return ["9.9.9.9", "::ffff:127.0.0.1"]

        prepared, _ = await prepare("https://mixed.example.org/x.git", policy=AddressPolicy(), resolver=mixed)
        assert prepared.problem is not None
        assert "translated" in prepared.problem


class TestHostileServers:
    @pytest.fixture
    def elsewhere(self) -> "Iterator[_Canary]":
        canary = _Canary()
        yield canary
        assert canary.connections() == 0

    async def test_a_redirect_is_named_and_not_followed(
        self, prepare: Preparing, repository: Repository, elsewhere: "_Canary"
    ) -> None:
        repository.server.redirects["/moved"] = target = f"http://127.0.0.1:{elsewhere.port}/new"
        prepared, _ = await prepare(repository.server.url("moved/project.git"))
        assert prepared.problem is not None
        assert f"has moved to {target}/project.git." in prepared.problem

    async def test_a_repository_runs_and_reaches_nothing(
        self, prepare: Preparing, repository: Repository, elsewhere: "_Canary"
    ) -> None:
        """Filters, drivers, submodules and configuration of the repository stay what they are: files."""
        root = repository.server.root
        work = root / "hostile"
        work.mkdir()
        git(work, "init", "--quiet")
        (work / ".gitattributes").write_text(
            "* filter=lfs diff=lfs merge=lfs -text\n*.evil filter=evil ident working-tree-encoding=UTF-16\n"
        )
        other = f"http://127.0.0.1:{elsewhere.port}/other.git"
        (work / ".gitmodules").write_text(
            f'[submodule "x"]\n\tpath = sub\n\turl = {other}\n\tupdate = !touch /workspace/owned\n'
        )
        (work / ".lfsconfig").write_text(f"[lfs]\n\turl = {other}\n")
        (work / "big.bin").write_text(
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
        )
        (work / "hooks").mkdir()
        (work / "hooks" / "post-checkout").write_text("#!/bin/sh\ntouch /workspace/owned\n")
        (work / "hooks" / "post-checkout").chmod(0o755)
        git(work, "add", "-A")
        git(work, "update-index", "--add", "--cacheinfo", f"160000,{repository.first},sub")
        git(work, "commit", "--quiet", "-m", "hostile")
        prepared, task = await prepare(repository.server.url("hostile/.git"))
        assert prepared.problem is None
        paths = await prepare.paths(task)
        assert "owned" not in paths
        assert (await prepare.file(task, "big.bin")).startswith(b"version https://git-lfs")
        assert not any(path.startswith("sub/") for path in paths)

    async def test_objects_on_another_server_are_not_fetched(
        self, prepare: Preparing, repository: Repository, elsewhere: "_Canary"
    ) -> None:
        """A "dumb" repository that names another store for its objects."""
        root = repository.server.root
        git(root, "clone", "--quiet", "--bare", "work", "dumb.git")
        dumb = root / "dumb.git"
        git(dumb, "config", "http.getanyfile", "true")
        git(dumb, "config", "http.uploadpack", "false")
        git(dumb, "update-server-info")
        for pack in (dumb / "objects").rglob("*"):
            if pack.is_file() and pack.parent.name != "info":
                pack.unlink()
        (dumb / "objects" / "info" / "http-alternates").write_text(f"http://127.0.0.1:{elsewhere.port}/objects\n")
        prepared, _ = await prepare(repository.server.url("dumb.git"))
        assert prepared.problem is not None

    async def test_a_certificate_must_be_of_the_name(self, prepare: Preparing, repository: Repository) -> None:
        """The server speaks no TLS at all: what matters is that the tunnel leads to it and that git insists."""
        prepared, _ = await prepare(repository.url.replace("http://", "https://"))
        assert prepared.problem is not None
        assert "403" not in prepared.problem
        assert "refused a connection" not in prepared.problem


class _Canary:
    """A listener on loopback that nothing may reach."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    def connections(self) -> int:
        """How many have come; closes it."""
        count = 0
        with self._listener:
            while True:
                try:
                    self._listener.accept()[0].close()
                except BlockingIOError:
                    return count
                count += 1


async def _never(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"{host}:{port} is not to be resolved")
