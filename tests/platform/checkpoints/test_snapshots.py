"""Snapshots of real sandboxes in a real object store."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from journeyman.platform.checkpoints.packs import HELD, PACK, PIECE, pack_key
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.errors import InvalidInput, NotFound, Unavailable
from journeyman.platform.kit.s3 import S3ObjectStore
from journeyman.platform.sandboxes.port import FileChunk, Sandbox, Scan, TreeEntry
from support.sandboxes import shell

LISTING = r"cd / && find workspace artifacts -mindepth 1 -printf '%p %y %m %l\n' | LC_ALL=C sort; find workspace artifacts -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum"
MAKE = r"""
mkdir -p src/empty 'a dir' && echo 'print(1)' > src/main.py && chmod 755 src/main.py
printf 'x\0y\377' > bin; : > nothing; ln -s src/main.py link; ln -s /usr/bin/python3 out; ln -s nowhere dangling
printf z > $'\xff\xfe name'; printf n > $'new\nline'; chmod 400 bin; chmod 500 'a dir'
cp src/main.py copy.py; echo report > /artifacts/report.md
"""

Lease = Callable[[], Awaitable[Sandbox]]


async def test_round_trip(snapshots: SnapshotStore, project_id: str, lease: Lease):
    first, second = await lease(), await lease()
    await shell(first, MAKE)
    taken = await snapshots.capture(first, project_id, None)
    assert taken.changed
    assert taken.files == 7
    assert taken.new_bytes > 0
    await shell(second, "mkdir -p left/over; echo x > left/over/file; echo x > src")
    await snapshots.restore(second, project_id, taken.digest)
    before, after = await shell(first, LISTING), await shell(second, LISTING)
    assert after.output == before.output
    assert b"dangling" in after.output
    again = await snapshots.capture(second, project_id, taken.digest)
    assert (again.digest, again.changed, again.new_bytes) == (taken.digest, False, 0)
    # Also for who knows nothing of the sandbox or of the previous snapshot.
    fresh = await snapshots.capture(second, project_id, None)
    assert fresh.digest == taken.digest


async def test_unchanged_workspace_costs_no_write(
    snapshots: SnapshotStore, project_id: str, sandbox: Sandbox, object_store: S3ObjectStore
):
    await shell(sandbox, MAKE)
    taken = await snapshots.capture(sandbox, project_id, None)
    keys = await object_store.list_keys(project_id)
    await shell(sandbox, "touch src/main.py; touch -d 2001-01-01 bin; mkdir t; rmdir t")
    again = await SnapshotStore(object_store).capture(sandbox, project_id, taken.digest)
    assert not again.changed
    assert again.digest == taken.digest
    assert (again.files, again.bytes) == (taken.files, taken.bytes)
    assert await object_store.list_keys(project_id) == keys


async def test_only_new_blobs_are_uploaded(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    await shell(sandbox, "head -c 3M /dev/urandom > big; echo 1 > small")
    first = await snapshots.capture(sandbox, project_id, None)
    await shell(sandbox, "echo 2 > small; mv big renamed; cp renamed copy")
    second = await snapshots.capture(sandbox, project_id, first.digest)
    assert second.changed
    assert 0 < second.new_bytes < 1000 < first.new_bytes
    manifest = await snapshots.manifest(project_id, second.digest)
    assert [entry.path for entry in manifest.entries] == ["workspace/copy", "workspace/renamed", "workspace/small"]
    old = await snapshots.manifest(project_id, first.digest)
    assert await snapshots.read(project_id, first.digest, "workspace/small") == b"1\n"
    assert await snapshots.read(project_id, second.digest, "/workspace/small") == b"2\n"
    assert old.by_path["workspace/big"].sha256 == manifest.by_path["workspace/copy"].sha256


async def test_mode_link_and_directory_changes_are_changes(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    await shell(sandbox, "echo 1 > f; mkdir d; ln -s f l")
    digests = [(await snapshots.capture(sandbox, project_id, None)).digest]
    for command in (
        "chmod 755 f",
        "chmod 700 d",
        "ln -sf d l",
        "rmdir d",
        "mkdir f2",
        "rm f; mkdir f",
        "echo x > /artifacts/x",
    ):
        await shell(sandbox, command)
        taken = await snapshots.capture(sandbox, project_id, digests[-1])
        assert taken.changed, command
        digests.append(taken.digest)
    assert len(set(digests)) == len(digests)


async def test_same_size_change_right_after_a_capture_is_seen(
    snapshots: SnapshotStore, project_id: str, sandbox: Sandbox
):
    """Also with the old time put back: ctime tells."""
    await shell(sandbox, "echo a > f; touch -d 2020-01-01 f")
    digest = (await snapshots.capture(sandbox, project_id, None)).digest
    for letter in "bcdefgh":
        await sandbox.write_file("/workspace/g", letter.encode())
        await shell(sandbox, f"echo {letter} > f; touch -d 2020-01-01 f")
        taken = await snapshots.capture(sandbox, project_id, digest)
        assert taken.changed
        digest = taken.digest
        assert await snapshots.read(project_id, digest, "workspace/f") == f"{letter}\n".encode()


async def test_writes_through_a_shared_mapping_are_seen(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    program = (
        "import mmap, sys\n"
        "file = open('mapped', 'w+b'); file.write(bytes(4096)); file.flush()\n"
        "view = mmap.mmap(file.fileno(), 4096)\n"
        "view[0] = 1\n"
        "print('ready', flush=True)\n"
        "import os\n"
        "while not os.path.exists('go'): pass\n"
        "view[0] = 2\n"
        "os.rename('go', 'gone')\n"
        "while not os.path.exists('stop'): pass\n"
    )
    await sandbox.write_file("/tmp/mapper.py", program.encode())
    mapper = await shell(sandbox, "exec python3 /tmp/mapper.py", background=True)
    while b"ready" not in (await sandbox.poll(mapper.exec_id)).output:
        await asyncio.sleep(0.02)
    first = await snapshots.capture(sandbox, project_id, None)
    await shell(sandbox, "touch go; while [ ! -e gone ]; do sleep 0.01; done; touch stop")
    second = await snapshots.capture(sandbox, project_id, first.digest)
    assert (await snapshots.read(project_id, first.digest, "workspace/mapped", 0, 1)) == b"\1"
    assert (await snapshots.read(project_id, second.digest, "workspace/mapped", 0, 1)) == b"\2"


async def test_files_that_change_meanwhile(snapshots: SnapshotStore, project_id: str, lease: Lease):
    sandbox = await lease()
    writer = (
        "import os, random\n"
        "while True:\n"
        "    name = f'f{random.randrange(60)}'\n"
        "    what = random.random()\n"
        "    if what < 0.2 and os.path.exists(name): os.unlink(name)\n"
        "    else: open(name, 'ab' if what < 0.5 else 'wb').write(os.urandom(random.randrange(9000)))\n"
        "    if os.path.exists(name) and os.path.getsize(name) > 100000: os.truncate(name, 10)\n"
    )
    await sandbox.write_file("/tmp/writer.py", writer.encode())
    running = await shell(sandbox, "exec python3 /tmp/writer.py", background=True)
    digest = None
    for _ in range(6):
        digest = (await snapshots.capture(sandbox, project_id, digest)).digest
        manifest = await snapshots.manifest(project_id, digest)
        for entry in manifest.entries:
            data = await snapshots.read(project_id, digest, entry.path)
            assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size, entry.sha256)
    await sandbox.kill(running.exec_id)
    last = await snapshots.capture(sandbox, project_id, digest)
    other = await lease()
    await snapshots.restore(other, project_id, last.digest)
    assert (await shell(other, LISTING)).output == (await shell(sandbox, LISTING)).output


async def test_large_files_are_read_by_range(snapshots: SnapshotStore, project_id: str, lease: Lease):
    sandbox = await lease()
    size = 2 * PACK + 12345
    data = random.Random(1).randbytes(size)
    await sandbox.write_file("/workspace/large", data)
    await shell(sandbox, "head -c 5000000 /dev/zero > zeros; truncate -s 1000000 sparse")
    taken = await snapshots.capture(sandbox, project_id, None)
    assert size < taken.new_bytes < size + 100_000
    for start, length in ((0, 10), (PIECE - 5, 10), (PACK - 1, 3), (size - 3, 100), (size + 5, 5), (100, PACK + 100)):
        assert (
            await snapshots.read(project_id, taken.digest, "workspace/large", start, length)
            == data[start : start + length]
        )
    assert await snapshots.read(project_id, taken.digest, "workspace/large") == data
    other = await lease()
    await snapshots.restore(other, project_id, taken.digest)
    assert (await shell(other, LISTING)).output == (await shell(sandbox, LISTING)).output


async def test_many_files(snapshots: SnapshotStore, project_id: str, lease: Lease):
    sandbox, other = await lease(), await lease()
    await shell(sandbox, "for d in $(seq 30); do mkdir d$d; for f in $(seq 50); do echo $d.$f > d$d/f$f; done; done")
    taken = await snapshots.capture(sandbox, project_id, None)
    assert taken.files == 1500
    await snapshots.restore(other, project_id, taken.digest)
    assert (await snapshots.capture(other, project_id, taken.digest)).changed is False
    assert (await shell(other, "cat d30/f50")).output == b"30.50\n"


async def test_special_files_are_left_out_and_named(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    await shell(sandbox, "mkfifo p; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; echo x > f")
    taken = await snapshots.capture(sandbox, project_id, None)
    assert sorted(taken.skipped) == ["workspace/p", "workspace/s"]
    assert taken.files == 1


async def test_unreadable_files_are_captured(snapshots: SnapshotStore, project_id: str, lease: Lease):
    sandbox, other = await lease(), await lease()
    await shell(sandbox, "echo secret > f; chmod 000 f; mkdir d; echo x > d/x; chmod 300 d")
    taken = await snapshots.capture(sandbox, project_id, None)
    assert taken.skipped == ()
    assert (await shell(sandbox, "stat -c %a f d")).output == b"0\n300\n"
    await snapshots.restore(other, project_id, taken.digest)
    assert (await shell(other, "stat -c %a f d; chmod 600 f; cat f")).output == b"0\n300\nsecret\n"


async def test_projects_share_nothing(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    await shell(sandbox, "echo secret > f")
    taken = await snapshots.capture(sandbox, project_id, None)
    for attempt in (
        snapshots.manifest("proj_other", taken.digest),
        snapshots.read("proj_other", taken.digest, "workspace/f"),
        snapshots.restore(sandbox, "proj_other", taken.digest),
        snapshots.diff("proj_other", None, taken.digest),
        snapshots.manifest(project_id, f"../{project_id}/snapshots/{taken.digest}"),
        snapshots.manifest(project_id, "0" * 64),
        snapshots.read(project_id, taken.digest, "workspace/none"),
        snapshots.read(project_id, taken.digest, "workspace"),
    ):
        with pytest.raises(NotFound):
            await attempt


async def test_damage_in_storage_is_noticed(project_id: str, object_store: S3ObjectStore, lease: Lease):
    sandbox = await lease()
    await shell(sandbox, "head -c 100000 /dev/urandom > f")
    taken = await SnapshotStore(object_store).capture(sandbox, project_id, None)
    manifest = await SnapshotStore(object_store).manifest(project_id, taken.digest)
    [piece] = manifest.blobs[manifest.by_path["workspace/f"].sha256]
    key = pack_key(project_id, piece.pack)
    data = await object_store.get(key)
    await object_store.put(key, data[:500] + bytes([data[500] ^ 1]) + data[501:])
    with pytest.raises(Unavailable, match="damaged"):
        await SnapshotStore(object_store).restore(await lease(), project_id, taken.digest)
    await object_store.delete(key)
    with pytest.raises(Unavailable, match="missing"):
        await SnapshotStore(object_store).read(project_id, taken.digest, "workspace/f")
    await object_store.put(f"{project_id}/snapshots/{taken.digest}", b"junk")
    with pytest.raises(Unavailable, match="manifest"):
        await SnapshotStore(object_store).manifest(project_id, taken.digest)


async def test_small_changes_take_one_object_until_they_fill_a_pack(
    project_id: str, object_store: S3ObjectStore, lease: Lease
):
    sandbox, other = await lease(), await lease()
    snapshots = SnapshotStore(object_store)
    taken = await snapshots.capture(sandbox, project_id, None)
    packs, contents = [], {}
    for number in range(12):
        contents[f"workspace/f{number}"] = data = random.Random(number).randbytes(9000)
        await sandbox.write_file(f"/workspace/f{number}", data)
        keys = await object_store.list_keys(project_id)
        taken = await snapshots.capture(sandbox, project_id, taken.digest)
        made = set(await object_store.list_keys(project_id)) - set(keys)
        packs += [key for key in made if "/packs/" in key]
        assert [key for key in made if "/snapshots/" in key] == [f"{project_id}/snapshots/{taken.digest}"]
    assert len(packs) == 1  # of the first eight, which are more than a manifest holds
    for key in await object_store.list_keys(f"{project_id}/snapshots/"):
        if not key.endswith(taken.digest):
            await object_store.delete(key)
    fresh = SnapshotStore(object_store)
    for path, data in contents.items():
        assert await fresh.read(project_id, taken.digest, path, 100, 8000) == data[100:8100]
    await fresh.restore(other, project_id, taken.digest)
    assert (await shell(other, LISTING)).output == (await shell(sandbox, LISTING)).output


async def test_what_deflates_well_does_not_stay_in_the_manifest_for_ever(
    snapshots: SnapshotStore, project_id: str, sandbox: Sandbox
):
    digest = (await snapshots.capture(sandbox, project_id, None)).digest
    for letter in "abcdef":
        await sandbox.write_file(f"/workspace/{letter}", letter.encode() * 20_000)
        digest = (await snapshots.capture(sandbox, project_id, digest)).digest
        manifest = await snapshots.manifest(project_id, digest)
        assert sum(piece.size for pieces in manifest.held.values() for piece in pieces) <= HELD
    for letter in "abcdef":
        assert await snapshots.read(project_id, digest, f"workspace/{letter}") == letter.encode() * 20_000


async def test_damage_of_a_manifest_that_holds_contents_is_noticed(
    project_id: str, object_store: S3ObjectStore, lease: Lease
):
    sandbox = await lease()
    await shell(sandbox, "head -c 1000 /dev/urandom > f")
    taken = await SnapshotStore(object_store).capture(sandbox, project_id, None)
    [key] = await object_store.list_keys(project_id)
    data = await object_store.get(key)
    for damaged in (data[:-1], data[:-1000], data[:-1001]):
        await object_store.put(key, damaged)
        with pytest.raises(Unavailable, match="damaged"):
            await SnapshotStore(object_store).manifest(project_id, taken.digest)
    await object_store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Unavailable, match="damaged"):
        await SnapshotStore(object_store).restore(await lease(), project_id, taken.digest)


class Refusing:
    """An object store that refuses to store manifests for a while."""

    def __init__(self, store: S3ObjectStore) -> None:
        self._store = store
        self.refuses = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, key: str, data: bytes) -> None:
        if self.refuses and "/snapshots/" in key:
            raise Unavailable("The object store does not answer; the request is tried again.")
        await self._store.put(key, data)


async def test_after_a_snapshot_that_could_not_be_saved_the_next_one_has_everything(
    project_id: str, object_store: S3ObjectStore, lease: Lease
):
    sandbox, other = await lease(), await lease()
    store = Refusing(object_store)
    snapshots = SnapshotStore(store)  # type: ignore[arg-type]  # by delegation
    await shell(sandbox, "echo 1 > a; echo 1 > b; head -c 100000 /dev/urandom > large")
    first = await snapshots.capture(sandbox, project_id, None)
    await shell(sandbox, "echo 2 > a; rm b; head -c 100000 /dev/urandom > larger")
    store.refuses = True
    with pytest.raises(Unavailable):
        await snapshots.capture(sandbox, project_id, first.digest)
    store.refuses = False
    await shell(sandbox, "echo 3 > c")
    second = await snapshots.capture(sandbox, project_id, first.digest)
    await SnapshotStore(object_store).restore(other, project_id, second.digest)
    assert (await shell(other, LISTING)).output == (await shell(sandbox, LISTING)).output


class Lying:
    """A sandbox whose agent tells what a hostile one might. ``came``: contents that its scan brings along."""

    def __init__(
        self, entries: Sequence[TreeEntry], contents: dict[str, bytes], came: dict[str, bytes] | None = None
    ) -> None:
        self.id = "sbx_lying"
        self._entries = list(entries)
        self._contents = contents
        self._came = came or {}
        self.read: list[str] = []

    async def scan(self, base: str | None = None) -> Scan:
        return Scan("scan-1", complete=True, entries=self._entries, removed=[], skipped=[], contents=self._came)

    async def read_blobs(self, paths: Sequence[str]) -> AsyncIterator[FileChunk]:
        self.read += paths
        for path in paths:
            yield FileChunk(path, 0, self._contents[path], last=True)

    async def mark(self, *_arguments: object) -> None:
        return


def file(path: str, content: bytes, claimed: bytes | None = None) -> TreeEntry:
    claim = content if claimed is None else claimed
    return TreeEntry(path, "file", 0o644, len(claim), hashlib.sha256(claim).hexdigest())


async def test_the_digest_is_of_what_came_not_of_what_was_said(snapshots: SnapshotStore, project_id: str):
    liar = Lying([file("workspace/f", b"real", claimed=b"other project's secret")], {"workspace/f": b"real"})
    taken = await snapshots.capture(liar, project_id, None)  # type: ignore[arg-type]
    assert await snapshots.read(project_id, taken.digest, "workspace/f") == b"real"


async def test_what_comes_with_a_scan_is_not_trusted_either(snapshots: SnapshotStore, project_id: str):
    entries = [file("workspace/f", b"real", claimed=b"other project's secret"), file("workspace/g", b"there")]
    liar = Lying(entries, {"workspace/g": b"there"}, came={"workspace/f": b"real", "workspace/none": b"of no file"})
    taken = await snapshots.capture(liar, project_id, None)  # type: ignore[arg-type]
    manifest = await snapshots.manifest(project_id, taken.digest)
    assert [entry.path for entry in manifest.entries] == ["workspace/f", "workspace/g"]
    assert await snapshots.read(project_id, taken.digest, "workspace/f") == b"real"
    assert liar.read == ["workspace/g"]


async def test_a_copy_is_read_when_the_first_came_with_another_content(snapshots: SnapshotStore, project_id: str):
    entries = [file("workspace/a", b"same"), file("workspace/b", b"same")]
    liar = Lying(entries, {"workspace/b": b"same"}, came={"workspace/a": b"changed"})
    taken = await snapshots.capture(liar, project_id, None)  # type: ignore[arg-type]
    assert await snapshots.read(project_id, taken.digest, "workspace/a") == b"changed"
    assert await snapshots.read(project_id, taken.digest, "workspace/b") == b"same"


@pytest.mark.parametrize(
    "path",
    [
        "workspace/../etc/passwd",
        "/etc/passwd",
        "etc/passwd",
        "workspace",
        "workspace//x",
        "workspace/./x",
        "workspace/a\0b",
        "workspace/" + "n" * 300,
        "workspace/" + "d/" * 2500 + "x",
    ],
)
async def test_paths_from_a_sandbox_are_checked(snapshots: SnapshotStore, project_id: str, path: str):
    liar = Lying([file(path, b"x")], {path: b"x"})
    with pytest.raises(InvalidInput):
        await snapshots.capture(liar, project_id, None)  # type: ignore[arg-type]


async def test_a_tree_from_a_sandbox_is_a_tree(snapshots: SnapshotStore, project_id: str):
    one, link = file("workspace/a/b", b"x"), TreeEntry("workspace/a", "symlink", 0o777, target="/etc")
    for entries in ([one, link], [link, one], [replace(link, target="")]):
        with pytest.raises(InvalidInput):
            await snapshots.capture(Lying(entries, {"workspace/a/b": b"x"}), project_id, None)  # type: ignore[arg-type]


async def test_what_was_replaced_is_not_carried_along(
    snapshots: SnapshotStore, project_id: str, sandbox: Sandbox, object_store: S3ObjectStore
):
    """A file of almost as much as a manifest holds, written anew: never with the former one beside it in a pack."""
    digest = None
    for number in range(4):
        await sandbox.write_file("/workspace/f", random.Random(number).randbytes(HELD - 1000))
        taken = await snapshots.capture(sandbox, project_id, digest)
        digest = taken.digest
        assert taken.new_bytes == HELD - 1000
    assert [key for key in await object_store.list_keys(project_id) if "/packs/" in key] == []
