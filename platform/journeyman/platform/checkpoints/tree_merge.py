"""Rules of a three-way merge of two trees: what is taken from which side, and what remains to be merged as text.

Files and links are decided path by path, directories for themselves, and last of all where the two meet. Modes are
merged bit by bit, which cannot conflict: a bit that one side changed is as that side has it.

Three kinds of directories are not merged as text. A ``.git`` belongs together: it is as ours has it, or as theirs if only
theirs changed it, with the objects of both. Caches stay as ours has them. So do installed packages, which are reported as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from journeyman.platform.checkpoints.diff import GENERATED
from journeyman.platform.checkpoints.manifest import MAX_NAME_BYTES, path_bytes
from journeyman.platform.sandboxes.port import TreeEntry

ConflictKind = Literal[
    "content", "add/add", "delete/modify", "type", "symlink", "binary", "directory/file", "generated"
]
Tree = Mapping[str, TreeEntry]
"""Entries by path."""

_INSTALLED: Final = frozenset({".venv", "node_modules"})


@dataclass(frozen=True, slots=True)
class Conflict:
    """What git could not merge at one path, and what the merged snapshot holds there.

    * ``content``: both changed the same lines. ``add/add``: both added the path with other contents.
    * ``delete/modify``: one side deleted what the other changed; the changed version stays.
    * ``type``: a file on one side, a link on the other. ``symlink``: two links with other targets.
    * ``binary``: both changed it, and it is not text, or larger than can be merged.
    * ``directory/file``: a directory on one side, a file or link on the other; the directory stays.
    * ``generated``: both changed a directory of installed packages; where they differ, ours stays.

    Where nothing else is said, ours stays at the path.
    """

    path: str
    kind: ConflictKind
    base: TreeEntry | None = None
    """The entry that both began with; this and the two below are ``None`` where there was none."""
    ours: TreeEntry | None = None
    theirs: TreeEntry | None = None
    markers: bool = False
    """Git's conflict markers stand in the file."""
    aside: str | None = None
    """Path at which the merged snapshot keeps what had to leave ``path`` or could not be there: nothing is lost."""
    renamed_from: str | None = None
    """The path in ``base`` when one side renamed the file."""


@dataclass(frozen=True, slots=True)
class TextMerge:
    """A file that both sides changed. ``mode`` is merged already."""

    path: str
    base: TreeEntry | None
    ours: TreeEntry
    theirs: TreeEntry
    mode: int
    renamed_from: str | None = None

    @property
    def inputs(self) -> tuple[TreeEntry, ...]:
        return (self.ours, self.theirs) if self.base is None else (self.base, self.ours, self.theirs)


@dataclass
class TreeMerge:
    """A merge under way. ``texts`` are to be settled with :meth:`settle`; then :meth:`finish` gives the result."""

    base: Tree
    ours: Tree
    theirs: Tree
    ours_label: str
    theirs_label: str
    texts: list[TextMerge] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    _leaves: dict[str, TreeEntry] = field(default_factory=dict)
    _directories: dict[str, TreeEntry] = field(default_factory=dict)
    _asides: list[tuple[Conflict, TreeEntry]] = field(default_factory=list)
    _generated: set[str] = field(default_factory=set)

    def start(self) -> None:
        for path, entry in self.ours.items():
            (self._directories if entry.kind == "directory" else self._leaves)[path] = entry
        # Reading the state of a repository is enough to change its index.
        ours_git = {
            root
            for path in _changed(self.base, self.ours)
            if (root := _git_root(path)) is not None and not _is_git_object(path) and path != f"{root}/index"
        }
        for path in _changed(self.base, self.theirs):
            root = _git_root(path)
            if root in ours_git and not _is_git_object(path):
                continue
            self._directory(path)
            self._leaf(path)

    def rename_candidates(self) -> tuple[list[Conflict], list[Conflict]]:
        """Conflicts that a rename may explain: deleted in ours but changed in theirs, and the other way round."""
        found = [
            conflict
            for conflict in self.conflicts
            if conflict.kind == "delete/modify" and conflict.base is not None and conflict.base.kind == "file"
        ]
        return [c for c in found if c.ours is None], [c for c in found if c.theirs is None]

    def added(self, side: Literal["ours", "theirs"]) -> list[TreeEntry]:
        """Files that only one side has."""
        mine, other = (self.ours, self.theirs) if side == "ours" else (self.theirs, self.ours)
        return [
            entry
            for path, entry in mine.items()
            if entry.kind == "file" and path not in self.base and path not in other and _unit(path) is None
        ]

    def renamed(self, conflict: Conflict, target: TreeEntry) -> None:
        """Take a conflict for a rename to ``target``: what the other side changed is merged into it."""
        changed = conflict.ours or conflict.theirs
        assert changed is not None
        assert conflict.base is not None
        self.conflicts.remove(conflict)
        del self._leaves[conflict.path]
        ours, theirs = (target, changed) if conflict.ours is None else (changed, target)
        self._both_changed(target.path, conflict.base, ours, theirs, renamed_from=conflict.path)

    def settle(self, text: TextMerge, merged: tuple[str, int] | None, *, clean: bool) -> None:
        """What came of a text: SHA-256 and size of the merged content, ``None`` when it is not text after all."""
        ours = replace(text.ours, path=text.path, mode=text.mode)
        conflict = partial(
            Conflict, text.path, base=text.base, ours=text.ours, theirs=text.theirs, renamed_from=text.renamed_from
        )
        if merged is None:
            self._leaves[text.path] = ours
            self._set_aside(conflict("add/add" if text.base is None else "binary"), text.theirs)
            return
        sha256, size = merged
        self._leaves[text.path] = replace(ours, sha256=sha256, size=size)
        if not clean:
            self.conflicts.append(conflict("add/add" if text.base is None else "content", markers=True))

    def finish(self) -> tuple[list[TreeEntry], tuple[Conflict, ...]]:
        """All entries, in no order, and the conflicts by path."""
        parents = _parents(self._leaves)
        for path in sorted(self._leaves.keys() & (parents | self._directories.keys())):
            leaf = self._leaves.pop(path)
            label = self.ours_label if self.ours.get(path) == leaf else self.theirs_label
            base, ours, theirs = self.base.get(path), self.ours.get(path), self.theirs.get(path)
            self.conflicts = [conflict for conflict in self.conflicts if conflict.path != path]
            self._set_aside(Conflict(path, "directory/file", base, ours, theirs), leaf, label)
        for conflict, entry in self._asides:
            assert conflict.aside is not None
            self._leaves[conflict.aside] = replace(entry, path=conflict.aside)
        for path in parents - self._directories.keys():
            sides = (self.ours.get(path), self.theirs.get(path), self.base.get(path))
            known = next((entry for entry in sides if entry is not None and entry.kind == "directory"), None)
            self._directories[path] = known or TreeEntry(path, "directory", 0o755)
        self.conflicts += [Conflict(path, "generated") for path in self._generated]
        self.conflicts.sort(key=lambda conflict: path_bytes(conflict.path))
        return [*self._leaves.values(), *self._directories.values()], tuple(self.conflicts)

    def _directory(self, path: str) -> None:
        base, ours, theirs = (_kind(side.get(path), directory=True) for side in (self.base, self.ours, self.theirs))
        if ours == base:
            _put(self._directories, path, theirs)
        elif theirs not in {base, ours}:
            if ours is not None and theirs is not None:
                mode = _merged_mode(base.mode if base is not None else 0o755, ours.mode, theirs.mode)
                self._directories[path] = replace(ours, mode=mode)
            else:  # Removed by one, its mode changed by the other: what it holds decides.
                self._directories.pop(path, None)

    def _leaf(self, path: str) -> None:
        base, ours, theirs = (_kind(side.get(path), directory=False) for side in (self.base, self.ours, self.theirs))
        if ours == base:
            _put(self._leaves, path, theirs)
        elif theirs in {base, ours}:
            return
        elif _git_root(path) is not None and not _is_git_object(path):
            _put(self._leaves, path, theirs)
        elif (unit := _unit(path)) is not None:
            _put(self._leaves, path, ours or theirs)
            if unit.rpartition("/")[2] in _INSTALLED:
                self._generated.add(unit)
        elif ours is None or theirs is None:
            _put(self._leaves, path, ours or theirs)
            self.conflicts.append(Conflict(path, "delete/modify", base, ours, theirs))
        else:
            self._both_changed(path, base, ours, theirs)

    def _both_changed(
        self,
        path: str,
        base: TreeEntry | None,
        ours: TreeEntry,
        theirs: TreeEntry,
        *,
        renamed_from: str | None = None,
    ) -> None:
        conflict = partial(Conflict, path, base=base, ours=ours, theirs=theirs, renamed_from=renamed_from)
        self._leaves[path] = replace(ours, path=path)
        if ours.kind != theirs.kind:
            self._set_aside(conflict("type"), theirs)
        elif ours.kind == "symlink":
            if ours.target != theirs.target:
                self._set_aside(conflict("symlink"), theirs)
        else:
            former = base if base is not None and base.kind == "file" else None
            mode = _merged_mode(former.mode if former else 0o644, ours.mode, theirs.mode)
            sha256 = former.sha256 if former else None
            if theirs.sha256 in {ours.sha256, sha256}:
                self._leaves[path] = replace(ours, path=path, mode=mode)
            elif ours.sha256 == sha256:
                self._leaves[path] = replace(theirs, path=path, mode=mode)
            else:
                self.texts.append(TextMerge(path, former, ours, theirs, mode, renamed_from))

    def _set_aside(self, conflict: Conflict, entry: TreeEntry, label: str | None = None) -> None:
        taken = {kept.aside for kept, _ in self._asides}
        wanted = _aside_path(conflict.path, label or self.theirs_label)
        aside, number = wanted, 0
        while any(aside in tree for tree in (taken, self.base, self.ours, self.theirs, self._leaves)):
            aside, number = f"{wanted}_{number}", number + 1
        conflict = replace(conflict, aside=aside)
        self.conflicts.append(conflict)
        self._asides.append((conflict, entry))


def _changed(base: Tree, side: Tree) -> list[str]:
    """Paths that a side added, changed or removed."""
    changed = [path for path, entry in side.items() if base.get(path) != entry]
    return changed + [path for path in base if path not in side]


def _kind(entry: TreeEntry | None, *, directory: bool) -> TreeEntry | None:
    return entry if entry is not None and (entry.kind == "directory") == directory else None


def _put(tree: dict[str, TreeEntry], path: str, entry: TreeEntry | None) -> None:
    if entry is None:
        tree.pop(path, None)
    else:
        tree[path] = entry


def _merged_mode(base: int, ours: int, theirs: int) -> int:
    return (ours & theirs) | (~base & (ours ^ theirs))


def _parents(leaves: Mapping[str, TreeEntry]) -> set[str]:
    """All directories that the leaves need, without the snapshot's roots."""
    found: set[str] = set()
    for path in leaves:
        parent = path.rpartition("/")[0]
        while "/" in parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return found


def _git_root(path: str) -> str | None:
    """The ``.git`` directory that a path lies in."""
    head, found, _ = path.partition("/.git/")
    return f"{head}/.git" if found else None


def _is_git_object(path: str) -> bool:
    return "objects" in path.partition("/.git/")[2].split("/")


def _unit(path: str) -> str | None:
    """The directory that is not merged file by file in which a path lies, if any."""
    names = path.split("/")
    for depth, name in enumerate(names[:-1]):
        if name == ".git" or name in GENERATED:
            return "/".join(names[: depth + 1])
    return None


def _aside_path(path: str, label: str) -> str:
    """As git names what cannot stay: the label behind a tilde."""
    directory, _, name = path.rpartition("/")
    suffix = "~" + "".join(char if char.isalnum() or char in "._-" else "_" for char in label)
    # Cut on bytes: a character that is cut in the middle stays as the bytes that it is.
    end = path_bytes(suffix)[: MAX_NAME_BYTES // 2]
    start = path_bytes(name)[: MAX_NAME_BYTES - 8 - len(end)]
    return f"{directory}/{(start + end).decode('utf-8', 'surrogateescape')}"
