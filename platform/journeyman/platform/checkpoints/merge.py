"""Three-way merge of workspace snapshots, by the rules of git.

Only paths that both sides changed are looked into, and only the contents of files that have to be merged are read. The
result is a stored snapshot like any other, whose unchanged contents are where they were.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from journeyman.platform.checkpoints.manifest import Blobs, Manifest
from journeyman.platform.checkpoints.snapshots import Snapshot, SnapshotStore
from journeyman.platform.checkpoints.text_merge import GitMerger, is_binary
from journeyman.platform.checkpoints.tree_merge import Conflict, ConflictKind, TextMerge, TreeMerge
from journeyman.platform.sandboxes.port import MIB, TreeEntry

__all__ = ["Conflict", "ConflictKind", "Merged", "merge"]

MAX_TEXT: Final = 16 * MIB
_BATCH: Final = 64 * MIB
_MAX_RENAME_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class Merged:
    """``snapshot.changed`` says whether it differs from ours. Conflicts are in the order of their paths."""

    snapshot: Snapshot
    conflicts: tuple[Conflict, ...]


async def merge(
    snapshots: SnapshotStore,
    project_id: str,
    *,
    base: str,
    ours: str,
    theirs: str,
    ours_label: str,
    theirs_label: str,
) -> Merged:
    """Merge into ``ours`` what ``theirs`` changed since ``base`` (digests of snapshots of one project).

    The labels name the sides in conflict markers and in the names of files that could not stay at their path. Renames
    are followed where the other side changed the renamed file. Raises :class:`NotFound` for an unknown snapshot.
    """
    root, mine, other = [await snapshots.manifest(project_id, digest) for digest in (base, ours, theirs)]
    if theirs in {base, ours}:
        return Merged(_as_it_is(mine, ours), ())
    if ours == base:
        return Merged(_as_it_is(other, ours), ())
    blobs = {**root.blobs, **mine.blobs, **other.blobs}
    tree = TreeMerge(
        root.by_path,
        mine.by_path,
        other.by_path,
        ours_label=_label(ours_label),
        theirs_label=_label(theirs_label),
    )
    await asyncio.to_thread(tree.start)
    await _follow_renames(snapshots, project_id, blobs, tree)
    new: dict[str, bytes] = {}
    for texts in _batches(tree, tree.texts):
        contents = await snapshots.read_blobs(project_id, blobs, [entry for text in texts for entry in text.inputs])
        new.update(await asyncio.to_thread(_merge_texts, tree, texts, contents))
    entries, conflicts = await asyncio.to_thread(tree.finish)
    unknown = {sha256: data for sha256, data in new.items() if sha256 not in blobs}
    return Merged(await snapshots.assemble(project_id, entries, blobs, unknown, previous=ours), conflicts)


def _as_it_is(manifest: Manifest, ours: str) -> Snapshot:
    return Snapshot(
        manifest.digest, changed=manifest.digest != ours, files=manifest.files, bytes=manifest.size, new_bytes=0
    )


def _label(label: str) -> str:
    """In one line, as a conflict marker has to be."""
    return "".join(char if char.isprintable() else " " for char in label) or "?"


def _batches(tree: TreeMerge, texts: Sequence[TextMerge]) -> Iterator[list[TextMerge]]:
    """Parts that fit into memory; what is too large for a merge is settled without being read."""
    batch: list[TextMerge] = []
    size = 0
    for text in texts:
        if max(entry.size for entry in text.inputs) > MAX_TEXT:
            tree.settle(text, None, clean=False)
            continue
        batch.append(text)
        size += sum(entry.size for entry in text.inputs)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _merge_texts(tree: TreeMerge, texts: Sequence[TextMerge], contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Contents that came of the merges, by SHA-256."""
    new: dict[str, bytes] = {}
    with GitMerger.open() as git:
        for text in texts:
            data = [contents[entry.sha256] for entry in text.inputs]
            if any(is_binary(side) for side in data):
                tree.settle(text, None, clean=False)
                continue
            result = git.merge(
                data[0] if text.base is not None else None,
                data[-2],
                data[-1],
                ours_label=tree.ours_label,
                theirs_label=tree.theirs_label,
            )
            sha256 = hashlib.sha256(result.content).hexdigest()
            new[sha256] = result.content
            tree.settle(text, (sha256, len(result.content)), clean=result.clean)
    return new


async def _follow_renames(snapshots: SnapshotStore, project_id: str, blobs: Blobs, tree: TreeMerge) -> None:
    """Find out which deletions were renames, where it matters: where the other side changed the file."""
    deleted_in_ours, deleted_in_theirs = tree.rename_candidates()
    for conflicts, side in ((deleted_in_ours, "ours"), (deleted_in_theirs, "theirs")):
        if not conflicts:
            continue
        added = tree.added(side)  # type: ignore[arg-type]  # one of the two
        left = list(conflicts)
        for conflict in conflicts:  # Exact ones need no reading.
            same = [entry for entry in added if conflict.base and entry.size and entry.sha256 == conflict.base.sha256]
            if same:
                name = conflict.path.rpartition("/")[2]
                target = next((entry for entry in same if entry.path.rpartition("/")[2] == name), same[0])
                tree.renamed(conflict, target)
                added.remove(target)
                left.remove(conflict)
        sources = [conflict.base for conflict in left if conflict.base is not None]
        wanted: list[TreeEntry] = [entry for entry in (*sources, *added) if entry.size]
        if not sources or not added or sum(entry.size for entry in wanted) > _MAX_RENAME_BYTES:
            continue
        contents = await snapshots.read_blobs(project_id, blobs, [*sources, *added])
        found = await asyncio.to_thread(
            _renames, [contents[e.sha256] for e in sources], [contents[e.sha256] for e in added]
        )
        for source, target_index in found.items():
            tree.renamed(left[source], added[target_index])


def _renames(removed: Sequence[bytes], added: Sequence[bytes]) -> dict[int, int]:
    with GitMerger.open() as git:
        return git.renames(removed, added)
