"""Packs: many blobs in one object, so that ten thousand small files are not ten thousand uploads.

A pack is the concatenation of pieces, each deflated if that makes it smaller; it is named by its SHA-256. Blobs larger
than a piece are spread over several, so that no blob is ever in memory as a whole.

A few small blobs are not worth an object of their own, which costs as much as the manifest that names it: they are held by
the manifest, and by those that build on it, until there are enough of them for a pack.
"""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from journeyman.platform.checkpoints.manifest import Blobs, Piece
from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.object_store import ObjectNotFound, ObjectStore, digest_of

PIECE = 2 * 1024 * 1024
PACK = 8 * 1024 * 1024
_WORTH_DEFLATING = 64
_AT_ONCE = 32 * 1024
"""Bytes that are packed in less time than a thread takes to start on it."""
HELD = 64 * 1024
"""Bytes of blobs that a manifest holds itself, at most; fewer when they are deflated."""
_GAP = 128 * 1024
_AHEAD = 3


def pack_key(project_id: str, digest: str) -> str:
    return f"{project_id}/packs/{digest[:2]}/{digest}"


class PackWriter:
    """Takes blobs piece by piece; uploads a pack whenever enough has come together."""

    def __init__(self, store: ObjectStore, project_id: str) -> None:
        self._store = store
        self._project_id = project_id
        self._waiting: list[tuple[str, bytes]] = []
        self._waiting_bytes = 0
        self._current: list[bytes] = []
        self._current_bytes = 0
        self._hash = hashlib.sha256()
        self._size = 0
        self._counter = 0
        self._parts: list[str] = []
        self._placed: dict[str, Piece] = {}
        self._blobs: dict[str, list[str]] = {}
        self.uploaded_bytes = 0

    async def add(self, data: bytes) -> None:
        """The next bytes of the current blob."""
        self._hash.update(data)
        self._size += len(data)
        self._current.append(data)
        self._current_bytes += len(data)
        if self._current_bytes >= PIECE:
            await self._close_piece()

    async def end_blob(self) -> tuple[str, int]:
        """Close the current blob: its SHA-256 and size."""
        sha256, size = self._hash.hexdigest(), self._size
        if self._current_bytes:
            await self._close_piece()
        if sha256 not in self._blobs:
            self._blobs[sha256] = self._parts
        self._hash, self._size, self._parts = hashlib.sha256(), 0, []
        return sha256, size

    async def finish(self, held: Blobs) -> dict[str, tuple[Piece, ...]]:
        """Where all the blobs are: of what is not uploaded yet, and of what the manifest before has ``held``, too.

        Both are for the new manifest to hold if they are small, else they are uploaded.
        """
        before = sum(piece.size for pieces in held.values() for piece in pieces if piece.data)
        if self._waiting_bytes + before <= HELD:
            _, data, pieces = await self._built()
            self.uploaded_bytes += len(data)
            for name, piece in pieces.items():
                kept = data[piece.offset : piece.offset + piece.stored]
                self._placed[name] = replace(piece, pack="", offset=0, data=kept)
        else:
            for sha256, blob in held.items():
                await self._take_over(sha256, blob)
            await self._upload()
        found = {sha256: tuple(self._placed[part] for part in parts) for sha256, parts in self._blobs.items() if parts}
        return {**held, **found}

    async def _take_over(self, sha256: str, pieces: tuple[Piece, ...]) -> None:
        """Let a blob that a manifest held go into a pack."""
        parts: list[str] = []
        for piece in pieces:
            self._counter += 1
            name = str(self._counter)
            parts.append(name)
            if piece.data:
                raw = _inflate(piece, piece.data)
                self._waiting.append((name, raw))
                self._waiting_bytes += len(raw)
            else:
                self._placed[name] = piece
        self._blobs.setdefault(sha256, parts)

    async def _close_piece(self) -> None:
        self._counter += 1
        name = str(self._counter)
        self._waiting.append((name, b"".join(self._current)))
        self._waiting_bytes += self._current_bytes
        self._parts.append(name)
        self._current, self._current_bytes = [], 0
        if self._waiting_bytes >= PACK:
            await self._upload()

    async def _upload(self) -> None:
        if not self._waiting:
            return
        digest, data, pieces = await self._built()
        await self._store.put(pack_key(self._project_id, digest), data)
        self.uploaded_bytes += len(data)
        self._placed.update(pieces)

    async def _built(self) -> tuple[str, bytes, dict[str, Piece]]:
        """A pack of all that waits: its digest, its bytes, and what is where in it."""
        waiting, self._waiting = self._waiting, []
        small, self._waiting_bytes = self._waiting_bytes <= _AT_ONCE, 0
        return _build(waiting) if small else await asyncio.to_thread(_build, waiting)


def _build(waiting: list[tuple[str, bytes]]) -> tuple[str, bytes, dict[str, Piece]]:
    parts: list[bytes] = []
    spans: list[tuple[str, int, int, int, bool]] = []
    offset = 0
    for name, raw in waiting:
        packed = zlib.compress(raw, 1) if len(raw) >= _WORTH_DEFLATING else raw
        deflated = len(packed) < len(raw)
        stored = packed if deflated else raw
        spans.append((name, offset, len(stored), len(raw), deflated))
        parts.append(stored)
        offset += len(stored)
    data = b"".join(parts)
    digest = digest_of(data)
    return digest, data, {name: Piece(digest, *span) for name, *span in spans}  # type: ignore[arg-type]  # as packed above


@dataclass(slots=True)
class _Run:
    """Pieces that are fetched together: close to each other in one pack; or, without a pack, some that are here already."""

    pack: str
    start: int
    end: int
    wanted: list[tuple[str, str, Piece, bool]]


def _runs(blobs: Sequence[tuple[str, str, tuple[Piece, ...]]]) -> list[_Run]:
    ordered = sorted(blobs, key=lambda blob: (blob[2][0].pack, blob[2][0].offset))
    runs: list[_Run] = []
    for name, sha256, pieces in ordered:
        for index, piece in enumerate(pieces):
            item = (name, sha256, piece, index == len(pieces) - 1)
            end = piece.offset + piece.stored
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.pack == piece.pack
                and (not piece.pack or last.start <= piece.offset <= last.end + _GAP)
                and (not piece.pack or end - last.start <= PACK)
            ):
                last.wanted.append(item)
                last.end = max(last.end, end)
            else:
                runs.append(_Run(piece.pack, piece.offset, end, [item]))
    return runs


def _inflate(piece: Piece, data: bytes) -> bytes:
    if not piece.deflated:
        return data
    inflater = zlib.decompressobj()
    raw = inflater.decompress(data, piece.size + 1)
    if len(raw) != piece.size:
        raise zlib.error("a piece has another size than its manifest says")
    return raw


class PackReader:
    """Reads blobs of one project back, and checks them."""

    def __init__(self, store: ObjectStore, project_id: str) -> None:
        self._store = store
        self._project_id = project_id

    async def read(self, pieces: Sequence[Piece], start: int, length: int) -> bytes:
        """A range of a blob."""
        parts: list[bytes] = []
        position = 0
        for piece in pieces:
            low, high = max(start - position, 0), min(start + length - position, piece.size)
            if low < high:
                data = piece.data or await self._fetch(piece.pack, piece.offset, piece.stored)
                try:
                    parts.append((await asyncio.to_thread(_inflate, piece, data))[low:high])
                except zlib.error:
                    raise self._damaged(piece.pack) from None
            position += piece.size
        return b"".join(parts)

    async def stream(self, blobs: Sequence[tuple[str, str, tuple[Piece, ...]]]) -> AsyncIterator[tuple[str, bytes]]:
        """All bytes of named blobs ``(name, sha256, pieces)``: each blob's in order and together, blobs in any order.

        Raises :class:`Unavailable` when a blob's content is not what its digest says.
        """
        runs = _runs([blob for blob in blobs if blob[2]])
        ahead: list[asyncio.Task[bytes]] = []
        hashes: dict[str, hashlib._Hash] = {}
        try:
            for index, run in enumerate(runs):
                while len(ahead) < _AHEAD and index + len(ahead) < len(runs):
                    following = runs[index + len(ahead)]
                    ahead.append(
                        asyncio.create_task(
                            self._fetch(following.pack, following.start, following.end - following.start)
                        )
                    )
                data = await ahead.pop(0)
                try:
                    parts = await asyncio.to_thread(_open, run, data, hashes)
                except zlib.error:
                    raise self._damaged(run.pack) from None
                for part in parts:
                    yield part
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _fetch(self, pack: str, start: int, length: int) -> bytes:
        if not pack:
            return b""  # each piece has its own
        try:
            data = await self._store.get(pack_key(self._project_id, pack), start=start, length=length)
        except ObjectNotFound:
            raise self._damaged(pack) from None
        if len(data) != length:
            raise self._damaged(pack)
        return data

    @staticmethod
    def _damaged(pack: str) -> Unavailable:
        msg = f"the pack {pack} of a snapshot is missing or damaged in object storage"
        return Unavailable(msg, code="snapshot_damaged", retryable=False)


def _open(run: _Run, data: bytes, hashes: dict[str, "hashlib._Hash"]) -> list[tuple[str, bytes]]:
    """Inflate and check the pieces of a run. Raises ``zlib.error`` for whatever is wrong."""
    opened = []
    for name, sha256, piece, last in run.wanted:
        raw = _inflate(piece, piece.data or data[piece.offset - run.start :][: piece.stored])
        running = hashes.pop(name, None) or hashlib.sha256()
        running.update(raw)
        if not last:
            hashes[name] = running
        elif running.hexdigest() != sha256:
            raise zlib.error("a blob has another digest than its manifest says")
        opened.append((name, raw))
    return opened
