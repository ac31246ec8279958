"""Manifests of workspace snapshots: what a snapshot consists of, and the digest that names it.

The digest covers paths, kinds, modes, contents and link targets, and nothing else: not where blobs are stored, not
times. The same workspace has the same digest, whoever captures it.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Self

from journeyman.platform.kit.errors import InvalidInput, Unavailable
from journeyman.platform.sandboxes.port import SNAPSHOT_ROOTS, TreeEntry

_FORMAT: Final = "journeyman-snapshot-1"
MAX_PATH_BYTES: Final = 4000
MAX_NAME_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a part of a blob is stored: a range of a pack, or in the manifest itself; deflated or as it is."""

    pack: str
    """Hex SHA-256 of the pack; empty of a piece that the manifest holds."""
    offset: int
    stored: int
    size: int
    deflated: bool
    data: bytes = field(default=b"", repr=False)
    """The stored bytes of a piece that the manifest holds; empty of others."""


Blobs = Mapping[str, tuple[Piece, ...]]
"""Where blobs are stored: by SHA-256, the pieces of each in order."""


def held_of(blobs: Blobs) -> dict[str, tuple[Piece, ...]]:
    """Those of which a manifest itself holds a piece."""
    return {sha256: pieces for sha256, pieces in blobs.items() if any(piece.data for piece in pieces)}


@dataclass(frozen=True)
class Manifest:
    """A snapshot's entries, sorted by the bytes of their paths, and the pieces of every blob they name.

    Stored as deflated JSON, followed by the bytes of the pieces that the manifest itself holds. Whoever builds on it takes
    them along: nothing refers to another manifest, which may be replaced at any time by one that says the same.
    """

    entries: tuple[TreeEntry, ...]
    blobs: Blobs

    @classmethod
    def of(cls, entries: Iterable[TreeEntry], blobs: Blobs) -> Self:
        """Check and sort entries, from whomever they come; add directories that are only implied."""
        checked = checked_entries(entries)
        named = {entry.sha256 for entry in checked if entry.kind == "file" and entry.size}
        return cls(tuple(checked), {sha256: blobs[sha256] for sha256 in sorted(named)})

    @cached_property
    def digest(self) -> str:
        return digest_of_entries(self.entries)

    @cached_property
    def by_path(self) -> dict[str, TreeEntry]:
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def files(self) -> int:
        return sum(entry.kind == "file" for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def held(self) -> dict[str, tuple[Piece, ...]]:
        """Blobs of which the manifest itself holds a piece."""
        return held_of(self.blobs)

    def encode(self) -> bytes:
        tail = bytearray()
        rows: dict[str, list[list[int]]] = {}
        packs = sorted({piece.pack for pieces in self.blobs.values() for piece in pieces})
        number = {pack: index for index, pack in enumerate(packs)}
        for sha256, pieces in self.blobs.items():
            rows[sha256] = []
            for p in pieces:
                offset = len(tail) if p.data else p.offset
                rows[sha256].append([number[p.pack], offset, p.stored, p.size, int(p.deflated)])
                tail += p.data
        document = {
            "format": _FORMAT,
            "entries": [_row(entry) for entry in self.entries],
            "packs": packs,
            "blobs": rows,
        }
        return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1) + tail

    @classmethod
    def decode(cls, data: bytes, digest: str) -> Self:
        """Raises :class:`Unavailable` when the bytes are not the manifest with that digest."""
        try:
            inflater = zlib.decompressobj()
            document = json.loads(inflater.decompress(data))
            if not inflater.eof:
                raise zlib.error("the manifest is cut off")
            packs, tail = document["packs"], inflater.unused_data
            manifest = cls(
                tuple(_entry(row) for row in document["entries"]),
                {
                    sha256: tuple(_piece(packs[number], row, tail) for number, *row in rows)
                    for sha256, rows in document["blobs"].items()
                },
            )
        except (zlib.error, ValueError, KeyError, TypeError, IndexError):
            manifest = None
        if manifest is None or manifest.digest != digest:
            msg = f"the manifest of snapshot {digest} is damaged in object storage"
            raise Unavailable(msg, code="snapshot_damaged", retryable=False)
        assert manifest.held is not None  # computed here, where it holds up nobody
        return manifest


def _piece(pack: str, row: list[int], tail: bytes) -> Piece:
    offset, stored, size, deflated = row
    data = b"" if pack else tail[offset : offset + stored]
    if not pack and len(data) != stored:
        raise ValueError(row)
    return Piece(pack, offset, stored, size, bool(deflated), data)


def digest_of_entries(entries: Iterable[TreeEntry]) -> str:
    """Hex SHA-256 that names a snapshot; the entries must be sorted."""
    lines = (json.dumps(_row(entry), separators=(",", ":")) for entry in entries)
    return hashlib.sha256("\n".join([_FORMAT, *lines]).encode()).hexdigest()


def path_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def checked_entries(entries: Iterable[TreeEntry]) -> list[TreeEntry]:
    """Sorted entries, each below a snapshot root, none twice, none below something that is not a directory.

    Raises :class:`InvalidInput` naming the path.
    """
    found: dict[str, TreeEntry] = {}
    for entry in entries:
        problem = path_problem(entry.path)
        if problem is None and entry.path in found:
            problem = "is there twice"
        if problem is None and entry.kind == "symlink" and (not entry.target or "\0" in entry.target):
            problem = "is a link to nowhere"
        if problem is not None:
            raise _refused(entry.path, problem)
        found[entry.path] = entry
    for path in list(found):
        parent = path.rpartition("/")[0]
        while "/" in parent:
            above = found.get(parent)
            if above is None:
                found[parent] = TreeEntry(parent, "directory", 0o755)
            elif above.kind != "directory":
                raise _refused(path, f"lies below {parent!a}, which is not a directory")
            else:
                break
            parent = parent.rpartition("/")[0]
    return sorted(found.values(), key=lambda entry: path_bytes(entry.path))


def path_problem(path: str) -> str | None:
    """Why a path cannot be in a snapshot; ``None`` when it can."""
    names = path.split("/")
    if names[0] not in SNAPSHOT_ROOTS or len(names) < 2:
        return "is not below /workspace or /artifacts"
    if any(name in {"", ".", ".."} for name in names):
        return "has an empty, '.' or '..' component"
    if "\0" in path:
        return "holds a NUL byte"
    try:
        encoded = path_bytes(path)
    except UnicodeEncodeError:
        return "is not valid text"
    if len(encoded) > MAX_PATH_BYTES or any(len(path_bytes(name)) > MAX_NAME_BYTES for name in names):
        return f"is longer than {MAX_PATH_BYTES} bytes, or a component longer than {MAX_NAME_BYTES}"
    return None


def _refused(path: str, problem: str) -> InvalidInput:
    return InvalidInput(f"a snapshot cannot hold {path[:300]!a}: it {problem}", code="bad_tree", path=ascii(path[:300]))


def _text(value: str) -> Any:
    """Text as itself; bytes that are no UTF-8 as base64, since not every reader of JSON takes lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(path_bytes(value)).decode()}
    return value


def _untext(value: Any) -> str:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"]).decode("utf-8", "surrogateescape")
    return str(value)


_KINDS: Final[dict[str, Literal["file", "directory", "symlink"]]] = {
    "f": "file",
    "d": "directory",
    "l": "symlink",
}
_LETTERS: Final = {kind: letter for letter, kind in _KINDS.items()}


def _row(entry: TreeEntry) -> list[Any]:
    return [
        _text(entry.path),
        _LETTERS[entry.kind],
        entry.mode,
        entry.size,
        _text(entry.target or entry.sha256),
    ]


def _entry(row: list[Any]) -> TreeEntry:
    path, kind, mode, size, content = row
    known = _KINDS[kind]
    return TreeEntry(
        _untext(path),
        known,
        int(mode),
        int(size),
        sha256=str(content) if known == "file" else "",
        target=_untext(content) if known == "symlink" else "",
    )
