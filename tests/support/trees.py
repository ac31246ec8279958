"""Snapshots made of plain dictionaries, for tests of what is done with trees."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.sandboxes.port import TreeEntry

EMPTY = "0" * 64


@dataclass(frozen=True)
class Link:
    target: str


@dataclass(frozen=True)
class File:
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Directory:
    mode: int = 0o755


Node = bytes | File | Link | Directory
Tree = Mapping[str, Node]
"""What is at a path; plain bytes are a file of mode 644. Directories are named only where they matter."""


def entry(path: str, node: Node) -> TreeEntry:
    if isinstance(node, Directory):
        return TreeEntry(path, "directory", node.mode)
    if isinstance(node, Link):
        return TreeEntry(path, "symlink", 0o777, target=node.target)
    file = File(node) if isinstance(node, bytes) else node
    return TreeEntry(path, "file", file.mode, len(file.data), sha256=hashlib.sha256(file.data).hexdigest())


async def store(snapshots: SnapshotStore, project_id: str, tree: Tree) -> str:
    """Store a tree below ``workspace/``, or below the root that a path begins with; the digest of the snapshot."""
    entries, contents = [], {}
    for path, node in tree.items():
        made = entry(path if path.startswith("artifacts/") else f"workspace/{path}", node)
        entries.append(made)
        if made.size:
            contents[made.sha256] = node if isinstance(node, bytes) else getattr(node, "data", b"")
    return (await snapshots.assemble(project_id, entries, {}, contents, previous=EMPTY)).digest


async def load(snapshots: SnapshotStore, project_id: str, digest: str, *, directories: bool = False) -> dict[str, Node]:
    """The other way round; files of mode 644 as bytes, directories only if asked for."""
    manifest = await snapshots.manifest(project_id, digest)
    contents = await snapshots.read_blobs(project_id, manifest.blobs, manifest.entries)
    found: dict[str, Node] = {}
    for item in manifest.entries:
        path = item.path.removeprefix("workspace/")
        if item.kind == "directory":
            if directories:
                found[path] = Directory(item.mode)
        elif item.kind == "symlink":
            found[path] = Link(item.target)
        else:
            data = contents[item.sha256]
            found[path] = data if item.mode == 0o644 else File(data, item.mode)
    return found
