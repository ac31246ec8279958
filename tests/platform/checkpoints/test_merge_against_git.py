"""Merges of random trees and texts: the same as git makes, and whatever the trees, nothing is lost."""

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pygit2
import pytest
from pygit2.enums import FileMode

from journeyman.platform.checkpoints.merge import Merged, merge
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.checkpoints.text_merge import GitMerger
from support.trees import File, Link, Node, Tree, load, store

SOMEONE = pygit2.Signature("Someone", "someone@example.org", 0, 0)
GIT = shutil.which("git")
LABELS = {"ours_label": "ours", "theirs_label": "theirs"}

needs_git = pytest.mark.skipif(GIT is None, reason="compares with the git executable, which is not installed")


def git(*arguments: str | Path, codes: tuple[int, ...] = (0, 1)) -> bytes:
    assert GIT is not None
    done = subprocess.run([GIT, *arguments], capture_output=True, check=False)
    assert done.returncode in codes, done.stderr
    return done.stdout


def random_lines(rng: random.Random, count: int, alphabet: int) -> list[bytes]:
    return [b"line%d\n" % rng.randrange(alphabet) for _ in range(count)]


def changed_lines(rng: random.Random, lines: list[bytes], alphabet: int) -> list[bytes]:
    lines = list(lines)
    for _ in range(rng.randrange(1, 6)):
        position = rng.randrange(len(lines) + 1)
        match rng.randrange(3):
            case 0:
                lines[position:position] = random_lines(rng, rng.randrange(1, 4), alphabet)
            case 1:
                del lines[position : position + rng.randrange(1, 4)]
            case _:
                lines[position : position + 1] = random_lines(rng, 1, alphabet)
    return lines


@needs_git
@pytest.mark.parametrize("alphabet", [4, 30, 10_000])
def test_texts_are_merged_as_git_does(tmp_path: Path, alphabet: int):
    rng = random.Random(alphabet)
    conflicts = 0
    with GitMerger.open() as merger:
        for number in range(60):
            base = random_lines(rng, rng.randrange(40), alphabet)
            texts = [b"".join(lines) for lines in (base, *(changed_lines(rng, base, alphabet) for _ in range(2)))]
            if rng.random() < 0.2:
                texts = [text.removesuffix(b"\n") for text in texts]
            files = [tmp_path / name for name in ("base", "ours", "theirs")]
            for file, text in zip(files, texts, strict=True):
                file.write_bytes(text)
            result = merger.merge(texts[0], texts[1], texts[2], **LABELS)
            labels = [word for label in ("ours", "base", "theirs") for word in ("-L", label)]
            expected = git("merge-file", "-p", *labels, files[1], files[0], files[2], codes=tuple(range(128)))
            assert result.content == expected, number
            assert result.clean == (b"<<<<<<< ours\n" not in expected)
            conflicts += not result.clean
    assert 5 < conflicts < 60


def commit(repository: pygit2.Repository, branch: str, tree: Tree, parents: list[pygit2.Oid]) -> pygit2.Oid:
    index = pygit2.Index()
    for path, node in tree.items():
        data = node.data if isinstance(node, File) else node
        assert isinstance(data, bytes)
        mode = FileMode.BLOB_EXECUTABLE if isinstance(node, File) else FileMode.BLOB
        index.add(pygit2.IndexEntry(path, repository.create_blob(data), mode))
    reference = f"refs/heads/{branch}"
    return repository.create_commit(reference, SOMEONE, SOMEONE, branch, index.write_tree(repository), parents)


def merge_with_git(directory: Path, base: Tree, ours: Tree, theirs: Tree) -> tuple[dict[str, Node], set[str]]:
    """The merged tree, with markers, and the paths in conflict."""
    repository = pygit2.init_repository(directory, bare=True)
    root = commit(repository, "base", base, [])
    commit(repository, "ours", ours, [root])
    commit(repository, "theirs", theirs, [root])
    listed = git("-C", directory, "merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", "ours", "theirs")
    oid, *paths = listed.decode().rstrip("\0").split("\0")
    found: dict[str, Node] = {}
    todo: list[tuple[str, pygit2.Object]] = [("", repository[oid])]
    while todo:
        prefix, tree = todo.pop()
        assert isinstance(tree, pygit2.Tree)
        for item in tree:
            path = f"{prefix}{item.name}"
            if isinstance(item, pygit2.Tree):
                todo.append((f"{path}/", item))
                continue
            assert isinstance(item, pygit2.Blob)
            executable = item.filemode == FileMode.BLOB_EXECUTABLE
            found[path] = File(item.data, 0o755) if executable else item.data
    return found, set(paths)


async def merge_here(
    snapshots: SnapshotStore, project_id: str, base: Tree, ours: Tree, theirs: Tree
) -> tuple[Merged, dict[str, Node]]:
    digests = [await store(snapshots, project_id, tree) for tree in (base, ours, theirs)]
    result = await merge(snapshots, project_id, base=digests[0], ours=digests[1], theirs=digests[2], **LABELS)
    return result, await load(snapshots, project_id, result.snapshot.digest)


def random_path(rng: random.Random) -> str:
    return "/".join(f"{rng.choice('abcd')}{rng.randrange(3)}" for _ in range(rng.choice((1, 1, 2, 3))))


def without_clashes(tree: dict[str, Node]) -> dict[str, Node]:
    return {path: node for path, node in tree.items() if not any(other.startswith(f"{path}/") for other in tree)}


def random_file(rng: random.Random) -> Node:
    data = b"".join(random_lines(rng, rng.randrange(1, 20), 1_000_000))
    return File(data, 0o755) if rng.random() < 0.2 else data


def random_node(rng: random.Random) -> Node:
    match rng.randrange(5):
        case 0:
            return Link(random_path(rng))
        case 1:
            return b"\0" + rng.randbytes(rng.randrange(20))
        case _:
            return random_file(rng)


def changed_node(rng: random.Random, node: Node) -> Node:
    data = node.data if isinstance(node, File) else node
    if isinstance(node, Link) and rng.random() < 0.5:
        return Link(random_path(rng))
    if not isinstance(data, bytes) or b"\0" in data:
        return random_node(rng)
    mode = 0o755 if isinstance(node, File) != (rng.random() < 0.2) else 0o644
    text = b"".join(changed_lines(rng, data.splitlines(keepends=True), 1_000_000)) if rng.random() < 0.9 else data
    return File(text, mode) if mode == 0o755 else text


def random_side(
    rng: random.Random, base: dict[str, Node], make: Callable[[random.Random], Node], added: str
) -> dict[str, Node]:
    side: dict[str, Node] = {}
    for path, node in base.items():
        change = rng.random()
        if change < 0.15:
            continue
        side[path] = changed_node(rng, node) if change < 0.5 else node
    for _ in range(rng.randrange(4)):
        side.setdefault(added + random_path(rng), make(rng))
    return without_clashes(side)


@needs_git
async def test_trees_are_merged_as_git_does(snapshots: SnapshotStore, project_id: str, tmp_path: Path):
    """Also with renames looked for, which git and this do alike where contents are all unlike."""
    rng = random.Random(7)
    seen = {"conflicts": 0, "clean": 0}
    for number in range(25):
        base = without_clashes({random_path(rng): random_file(rng) for _ in range(rng.randrange(1, 12))})
        # What both sides add gets paths of its own, so that no directory meets a file.
        ours, theirs = (random_side(rng, base, random_file, f"{side}/") for side in ("x", "y"))
        expected, paths = merge_with_git(tmp_path / str(number), base, ours, theirs)
        result, tree = await merge_here(snapshots, project_id, base, ours, theirs)
        assert tree == expected, number
        assert {conflict.path.removeprefix("workspace/") for conflict in result.conflicts} == paths, number
        seen["conflicts" if paths else "clean"] += 1
    assert min(seen.values()) > 2


@needs_git
@pytest.mark.parametrize("swapped", [False, True])
async def test_renames_are_followed_as_by_git(
    snapshots: SnapshotStore, project_id: str, tmp_path: Path, *, swapped: bool
):
    rng = random.Random(3)
    for number in range(6):
        base = {f"old/{name}": b"".join(random_lines(rng, 20, 1_000_000)) for name in "abc"}
        ours = {path: changed_node(rng, node) for path, node in base.items()}
        theirs = {f"moved{number}/{rng.randrange(9)}{path[-1]}": changed_node(rng, node) for path, node in base.items()}
        theirs["moved"] = theirs.pop(next(iter(theirs)))
        sides = (theirs, ours) if swapped else (ours, theirs)
        expected, paths = merge_with_git(tmp_path / str(number), base, *sides)
        result, tree = await merge_here(snapshots, project_id, base, *sides)
        # Git writes the path into the markers when the two sides have different ones.
        shown = {path: _without_paths(node) for path, node in expected.items()}
        assert tree == shown, number
        assert {conflict.path.removeprefix("workspace/") for conflict in result.conflicts} == paths, number


def _without_paths(node: Node) -> Node:
    def plain(line: bytes) -> bytes:
        marker = line.startswith((b"<<<<<<< ours:", b">>>>>>> theirs:"))
        return line.partition(b":")[0] + b"\n" if marker else line

    data = node.data if isinstance(node, File) else node
    assert isinstance(data, bytes)
    text = b"".join(plain(line) for line in data.splitlines(keepends=True))
    return File(text, node.mode) if isinstance(node, File) else text


async def test_nothing_is_lost_whatever_the_trees(snapshots: SnapshotStore, project_id: str):
    """Trees with links, binary files, and files where others have directories."""
    rng = random.Random(11)
    kinds: set[str] = set()
    for number in range(40):
        base = without_clashes({random_path(rng): random_node(rng) for _ in range(rng.randrange(10))})
        ours, theirs = (random_side(rng, base, random_node, "") for _ in range(2))
        result, tree = await merge_here(snapshots, project_id, base, ours, theirs)
        mirrored, _ = await merge_here(snapshots, project_id, base, theirs, ours)
        conflicts = {conflict.path.removeprefix("workspace/"): conflict for conflict in result.conflicts}
        assert {c.path: c.kind for c in result.conflicts} == {c.path: c.kind for c in mirrored.conflicts}, number
        kinds |= {conflict.kind for conflict in result.conflicts}
        asides = {c.aside.removeprefix("workspace/") for c in result.conflicts if c.aside is not None}
        known = base.keys() | ours.keys() | theirs.keys()
        assert tree.keys() - known == asides, number
        for path in known:
            before, mine, other = base.get(path), ours.get(path), theirs.get(path)
            conflict = conflicts.get(path)
            if conflict is None:
                if mine in (before, other):
                    assert tree.get(path) == other, (number, path)
                elif other == before:
                    assert tree.get(path) == mine, (number, path)
                else:  # Merged as text, or as modes.
                    assert b"<<<<<<<" not in _data(tree[path]), (number, path)
            elif conflict.markers:
                assert b"<<<<<<< ours\n" in _data(tree[path]), (number, path)
            else:
                kept = [tree.get(path)]
                if conflict.aside is not None:
                    kept.append(tree[conflict.aside.removeprefix("workspace/")])
                changed = [node for node in (mine, other) if node not in (None, before)]
                assert all(_same_content(node, kept) for node in changed), (number, path)
    assert kinds == {"content", "add/add", "delete/modify", "type", "symlink", "binary", "directory/file"}


def _data(node: Node) -> bytes:
    data = node.data if isinstance(node, File) else node
    assert isinstance(data, bytes)
    return data


def _same_content(node: Node | None, kept: list[Node | None]) -> bool:
    """Modes are merged."""
    return any(
        node == other
        or (isinstance(node, bytes | File) and isinstance(other, bytes | File) and _data(node) == _data(other))
        for other in kept
    )
