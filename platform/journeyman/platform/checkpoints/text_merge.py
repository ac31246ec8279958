"""Merges of texts, and the likeness of files, by git's own code (libgit2); no git executable is needed.

Everything here blocks: call it in a thread.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

import pygit2
from pygit2.enums import DeltaStatus, DiffFind, DiffOption, FileMode

MAX_COMPARED_PAIRS: Final = 250_000
"""Removed files times added files up to which renames are looked for."""


@dataclass(frozen=True, slots=True)
class MergedText:
    content: bytes
    clean: bool
    """No conflict markers were written."""


def is_binary(data: bytes) -> bool:
    """As git decides it: a NUL in the first 8,000 bytes."""
    return b"\0" in data[:8000]


class GitMerger:
    """Merges texts and finds renames. Needs a repository only to hand contents to libgit2."""

    def __init__(self, repository: pygit2.Repository) -> None:
        self._repository = repository

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Self]:
        with tempfile.TemporaryDirectory(prefix="jm-merge-", ignore_cleanup_errors=True) as directory:
            repository = pygit2.init_repository(directory, bare=True)
            try:
                yield cls(repository)
            finally:
                repository.free()

    def merge(
        self, base: bytes | None, ours: bytes, theirs: bytes, *, ours_label: str, theirs_label: str
    ) -> MergedText:
        """Three-way merge; without a base, as of two files that were both added."""
        result = self._repository.merge_file_from_index(
            self._entry("base", base) if base is not None else None,
            self._entry(ours_label, ours),
            self._entry(theirs_label, theirs),
        )
        content = result.contents.encode("latin-1")
        if not result.automergeable:  # libgit2 leaves out the label of a side that is empty.
            if not ours:
                content = re.sub(rb"\A<<<<<<<(?=\r?\n)", lambda found: found[0] + b" " + _bytes(ours_label), content)
            if not theirs:
                content = re.sub(rb">>>>>>>(?=\r?\n\Z)", lambda found: found[0] + b" " + _bytes(theirs_label), content)
        return MergedText(content, clean=result.automergeable)

    def _entry(self, label: str, data: bytes) -> pygit2.IndexEntry:
        # libgit2 writes the paths of entries as labels; they have no other meaning here.
        return pygit2.IndexEntry(
            _bytes(label).decode("latin-1"),
            self._repository.create_blob(_as_utf8(data)),
            FileMode.BLOB,
        )

    def renames(self, removed: Sequence[bytes], added: Sequence[bytes]) -> dict[int, int]:
        """Which added file each removed one became: indexes, for contents that are alike by half or more, as for git."""
        if not removed or not added or len(removed) * len(added) > MAX_COMPARED_PAIRS:
            return {}
        before, after = self._tree("a", removed), self._tree("b", added)
        diff = before.diff_to_tree(after, flags=DiffOption.SKIP_BINARY_CHECK)
        diff.find_similar(flags=DiffFind.FIND_RENAMES, rename_limit=max(len(removed), len(added)))
        return {
            int(delta.old_file.path[1:]): int(delta.new_file.path[1:])
            for delta in diff.deltas
            if delta.status == DeltaStatus.RENAMED
        }

    def _tree(self, letter: str, contents: Sequence[bytes]) -> pygit2.Tree:
        builder = self._repository.TreeBuilder()
        for index, data in enumerate(contents):
            builder.insert(f"{letter}{index}", self._repository.create_blob(data), FileMode.BLOB)
        tree = self._repository[builder.write()]
        assert isinstance(tree, pygit2.Tree)
        return tree


def _bytes(label: str) -> bytes:
    return label.encode("utf-8", "surrogateescape")


def _as_utf8(data: bytes) -> bytes:
    """Every byte as a character: pygit2 gives merged files as text, and only UTF-8 comes through."""
    return data if data.isascii() else data.decode("latin-1").encode()
