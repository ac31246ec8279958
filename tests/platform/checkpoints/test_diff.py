"""Diffs, judged by ``git apply``."""

import asyncio
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from journeyman.platform.checkpoints import diff
from journeyman.platform.checkpoints.snapshots import FileChange, SnapshotStore
from journeyman.platform.sandboxes.port import Sandbox
from support.sandboxes import shell

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


async def between(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox, before: str, after: str):
    """The changes that the second command makes to what the first made, and both digests."""
    assert (await shell(sandbox, before)).exit_code == 0
    a = (await snapshots.capture(sandbox, project_id, None)).digest
    result = await shell(sandbox, after)
    assert result.exit_code == 0, result.output
    b = (await snapshots.capture(sandbox, project_id, a)).digest
    return await snapshots.diff(project_id, a, b), a, b


async def applied(snapshots: SnapshotStore, project_id: str, a: str, changes: list[FileChange], directory: Path) -> str:
    """The digest of a snapshot's workspace after ``git apply`` of the changes."""
    archive = directory / "a.tar.gz"
    archive.write_bytes(await snapshots.to_archive(project_id, a))
    tree = directory / "tree"
    tree.mkdir()
    patch = "".join(change.patch for change in changes).encode("utf-8", "surrogateescape")

    def run() -> None:
        subprocess.run(["tar", "-xzf", archive, "-C", tree], check=True)
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], cwd=tree, input=patch, check=True, capture_output=True
        )
        subprocess.run(["tar", "-czf", archive, "-C", tree, "."], check=True)

    await asyncio.to_thread(run)
    return (await snapshots.from_archive(project_id, archive)).digest


CASES = {
    "edit": ("seq 100 > f", "sed -i -e 's/^50$/fifty/' -e 3d -e '97a x' f"),
    "add": ("true", "mkdir -p a/b; echo new > a/b/f; printf 'no newline' > g; : > empty; echo x > run; chmod 755 run"),
    "delete": ("echo x > f; : > e; printf y > g", "rm f e g"),
    "mode": ("echo x > f; echo y > g", "chmod 755 f; chmod 755 g; echo z >> g"),
    "newline": ("printf 'a\\nb' > f; printf 'a\\nb\\n' > g", "printf 'a\\nb\\n' > f; printf 'a\\nb' > g"),
    "link": ("ln -s a l; echo f > f; ln -s f gone", "ln -sfn b l; rm f; ln -s l f; rm gone; ln -s x y"),
    "link to file": ("ln -s a l", "rm l; echo text > l"),
    "names": (
        "echo 1 > 'a b'; echo 2 > 'q\"\\'; echo 3 > 'ü'; printf 4 > $'t\\tn\\nl'; printf 5 > $'\\xff'",
        "echo 1 >> 'a b'; echo 2 >> 'q\"\\'; echo 3 >> 'ü'; printf 4 >> $'t\\tn\\nl'; rm $'\\xff'; echo 6 > 'c d'",
    ),
    "bytes": ("printf 'a\\xff\\r\\nb\\n' > f", "printf 'a\\xfe\\r\\nb\\x0cc\\n' > f"),
    "file to directory": ("echo x > f", "rm f; mkdir f; echo y > f/g"),
    "rewrite": ("seq 3000 > f", "seq 3001 6000 > f"),
    "from empty": (": > f", "echo x > f"),
    "to empty": ("echo x > f", ": > f"),
}


@needs_git
@pytest.mark.parametrize("case", CASES)
async def test_git_applies_it(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox, tmp_path: Path, case: str):
    changes, a, b = await between(snapshots, project_id, sandbox, *CASES[case])
    assert changes
    assert not any(change.binary for change in changes)
    assert await applied(snapshots, project_id, a, changes, tmp_path) == b


@needs_git
async def test_random_edits(tmp_path: Path):
    chance = random.Random(7)
    for number in range(40):
        old = [chance.choice(["a", "b", "c", ""]) for _ in range(chance.randrange(60))]
        new = list(old)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(new) + 1)
            new[at : at + chance.randrange(3)] = [chance.choice("xyz") for _ in range(chance.randrange(3))]
        before = "\n".join(old).encode() + chance.choice([b"", b"\n"])
        after = "\n".join(new).encode() + chance.choice([b"", b"\n"])
        if before == after:
            continue
        patch = b"--- a/f\n+++ b/f\n" + b"".join(diff._hunks(diff._lines(before), diff._lines(after)))
        tree = tmp_path / str(number)
        tree.mkdir()
        (tree / "f").write_bytes(before)
        done = await asyncio.to_thread(
            subprocess.run,
            ["git", "apply", "--whitespace=nowarn"],
            cwd=tree,
            input=patch,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (patch, done.stderr)
        assert (tree / "f").read_bytes() == after


async def test_text(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    changes, _, _ = await between(
        snapshots, project_id, sandbox, "printf 'one\\ntwo\\n' > f", "printf 'one\\n2\\n' > f"
    )
    assert changes == [
        FileChange(
            "workspace/f",
            "modified",
            binary=False,
            patch="diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n",
        )
    ]


async def test_binary_and_large_files_are_noted(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    before = "printf '\\0' > b; head -c 5M /dev/zero | tr '\\0' x > large; printf '\\0' > m; printf '\\0' > gone"
    after = "printf '\\0\\1' > b; echo >> large; chmod 755 m; rm gone; printf '\\0' > new"
    changes, _, _ = await between(snapshots, project_id, sandbox, before, after)
    assert [(change.path, change.kind, change.binary) for change in changes] == [
        ("workspace/b", "modified", True),
        ("workspace/gone", "deleted", True),
        ("workspace/large", "modified", True),
        ("workspace/m", "modified", True),
        ("workspace/new", "added", True),
    ]
    assert [bool(change.patch) for change in changes] == [False, False, False, True, False]
    assert changes[3].patch.splitlines()[1:] == ["old mode 100644", "new mode 100755"]


async def test_what_nobody_reads_is_left_out(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    before = "mkdir -p .git node_modules; echo x > .git/HEAD; echo 1 > node_modules/kept"
    after = "echo y > .git/HEAD; mkdir -p p/__pycache__; echo z > p/__pycache__/m.pyc; echo 2 > node_modules/kept; echo 3 > node_modules/new; echo a > .gitignore; chmod 700 p"
    changes, _, _ = await between(snapshots, project_id, sandbox, before, after)
    assert [change.path for change in changes] == ["workspace/.gitignore", "workspace/node_modules/kept"]


async def test_artifacts_and_the_empty_snapshot(snapshots: SnapshotStore, project_id: str, sandbox: Sandbox):
    await shell(sandbox, "echo w > w; echo a > /artifacts/a")
    taken = await snapshots.capture(sandbox, project_id, None)
    changes = await snapshots.diff(project_id, None, taken.digest)
    assert [(change.path, change.kind) for change in changes] == [("artifacts/a", "added"), ("workspace/w", "added")]
    assert await snapshots.diff(project_id, taken.digest, taken.digest) == []
