"""Archives in and out: tar (plain, gzip, bzip2, xz) and zip, never extracted to disk.

An archive from outside is taken apart in memory, member by member, and refused as a whole for the first member that a
workspace cannot or must not hold. Refusals are :class:`InvalidInput` and name the member.
"""

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Final, cast

from journeyman.platform.checkpoints.manifest import path_problem
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.sandboxes.port import GIB, MIB, TreeEntry

_CHUNK: Final = MIB
_ROOT: Final = "workspace"
_MAX_READ: Final = 8 * MIB
_MAX_HEADERS: Final = MIB
"""Bytes of all headers that belong to one member: long names, extended attributes, maps of sparse files."""
_MAX_GLOBAL: Final = 1000
_MAX_LINKS_FOLLOWED: Final = 40


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What an archive may become. The ratio counts once ``ratio_floor`` bytes have been unpacked."""

    max_bytes: int = 2 * GIB
    max_members: int = 100_000
    max_ratio: float = 250.0
    ratio_floor: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class HardLink:
    """A member with the content of an earlier one."""

    path: str
    target: str


Event = bytes | TreeEntry | HardLink
"""Chunks of a file's content come before the entry that ends it; ``size`` and ``sha256`` of that are not filled in."""


class _Bounded(io.RawIOBase):
    """Counts what a decompressor gives, and stops a bomb. One read never takes more than 8 MiB of memory."""

    def __init__(self, source: IO[bytes], packed_bytes: int, limits: ArchiveLimits) -> None:
        self._source = source
        self._packed = max(packed_bytes, 1)
        self._limits = limits
        self._given = 0
        self._furthest = 0
        self._headers: int | None = None
        self.last = b""
        """What was read last."""

    @contextmanager
    def in_headers(self) -> Iterator[None]:
        """While headers are read, which are kept in memory, as a map of a sparse file is before it can be refused."""
        self._headers = _MAX_HEADERS
        try:
            yield
        finally:
            self._headers = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _MAX_READ:
            raise InvalidInput("the archive is refused: a header in it takes more than 8 MiB", code="bad_archive")
        data = self._source.read(size)
        if self._headers is not None:
            self._headers -= len(data)
            if self._headers < 0:
                raise InvalidInput(
                    f"the archive is refused: the headers of a member in it take more than {_MAX_HEADERS} bytes",
                    code="bad_archive",
                )
        self._given += len(data)
        self._furthest = max(self._furthest, self._source.tell())
        self.last = data
        # Headers and padding come on top of the files.
        _check_size(self._given - 2048 * self._limits.max_members, self._given, self._packed, self._limits)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Forward, and one byte back: going back in compressed data costs as much as all that comes before it."""
        if whence != io.SEEK_SET or offset < self._furthest - 1:
            raise InvalidInput(
                "the archive is refused: a member in it has another size than its headers say", code="bad_archive"
            )
        return self._source.seek(offset)

    def tell(self) -> int:
        return self._source.tell()


def _check_size(files: int, unpacked: int, packed: int, limits: ArchiveLimits) -> None:
    if files > limits.max_bytes:
        raise InvalidInput(
            f"the archive is refused: it unpacks to more than {limits.max_bytes} bytes", code="archive_too_large"
        )
    if unpacked > limits.ratio_floor and unpacked / packed > limits.max_ratio:
        raise InvalidInput(
            f"the archive is refused: it unpacks to more than {limits.max_ratio:.0f} times its size",
            code="archive_bomb",
        )


class _Members:
    """The rules for members, whatever the format."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._count = 0
        self._bytes = 0
        self._kinds: dict[str, str] = {}
        self._links: dict[str, tuple[str, str]] = {}

    def path(self, name: str, kind: str) -> str | None:
        """The snapshot path for a member; ``None`` for the archive's own root directory."""
        self._count += 1
        if self._count > self._limits.max_members:
            raise InvalidInput(
                f"the archive is refused: it has more than {self._limits.max_members} members", code="archive_too_large"
            )
        if name.startswith("/"):
            raise refused(name, "its path is absolute")
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if ".." in parts:
            raise refused(name, "its path holds '..'")
        if not parts:
            if kind == "directory":
                return None
            raise refused(name, "it has no name")
        path = "/".join([_ROOT, *parts])
        problem = path_problem(path)
        if problem is not None:
            raise refused(name, f"its path {problem}")
        for depth in range(2, len(parts) + 1):
            above = self._kinds.setdefault("/".join([_ROOT, *parts[: depth - 1]]), "directory")
            if above != "directory":
                raise refused(name, f"it lies below a member that is a {above}")
        former = self._kinds.get(path)
        if former is not None and (former != "directory" or kind != "directory"):
            raise refused(name, "it is in the archive twice")
        self._kinds[path] = kind
        return path

    def add_bytes(self, name: str, count: int) -> None:
        self._bytes += count
        if self._bytes > self._limits.max_bytes:
            raise refused(name, f"with it the files hold more than {self._limits.max_bytes} bytes", "archive_too_large")

    def symlink(self, name: str, path: str, target: str) -> TreeEntry:
        if not target or "\0" in target or len(target) > 4000:
            raise refused(name, "its target is empty, too long or holds a NUL byte")
        if target.startswith("/"):
            raise refused(name, "it is a link to an absolute path")
        self._links[path] = (name, target)
        return TreeEntry(path, "symlink", 0o777, target=target)

    def hard_link(self, name: str, path: str, target: str) -> HardLink:
        parts = [part for part in target.split("/") if part not in {"", "."}]
        source = "/".join([_ROOT, *parts])
        if self._kinds.get(source) != "file" or source == path:
            raise refused(name, "it is a hard link to something that is not an earlier file of the archive")
        return HardLink(path, source)

    def check_links(self) -> None:
        """Follow every link through all the others, as a kernel would."""
        for path, (name, target) in self._links.items():
            place = path.split("/")[1:-1]
            ahead = target.split("/")[::-1]
            followed = 0
            while ahead:
                part = ahead.pop()
                if part in {"", "."}:
                    continue
                if part == "..":
                    if not place:
                        raise refused(name, "it is a link that leads out of the archive")
                    place.pop()
                    continue
                place.append(part)
                further = self._links.get("/".join([_ROOT, *place]))
                if further is not None:
                    followed += 1
                    if followed > _MAX_LINKS_FOLLOWED:
                        raise refused(name, "it is a link in a circle")
                    place.pop()
                    ahead.extend(further[1].split("/")[::-1])


def refused(name: str, why: str, code: str = "bad_archive") -> InvalidInput:
    shown = ascii(name[:300])
    return InvalidInput(f"the archive is refused because of its member {shown}: {why}", code=code, member=shown)


def unpack(data: bytes | Path, limits: ArchiveLimits) -> Iterator[Event]:
    """The members of an archive, all below ``workspace/``. Blocks while it works; see :func:`take`."""
    try:
        with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as file:
            magic = file.read(8)
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            members = _Members(limits)
            if magic.startswith(b"PK"):
                yield from _zip(file, size, members, limits)
            elif magic.startswith(b"\x28\xb5\x2f\xfd"):
                raise InvalidInput("zstd archives are not supported; send a tar.gz or a zip", code="bad_archive")
            else:
                yield from _tar(file, magic, size, members, limits)
            members.check_links()
    except InvalidInput:
        raise
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        NotImplementedError,
        ValueError,
        IndexError,
        OverflowError,
        RecursionError,  # headers that each announce one more header
        OSError,
    ) as error:
        raise InvalidInput(
            f"the archive cannot be read as tar, tar.gz, tar.bz2, tar.xz or zip: {str(error)[:200]}", code="bad_archive"
        ) from None


def take(events: Iterator[Event]) -> list[Event]:
    """The next events, up to a few MiB; empty at the end."""
    taken: list[Event] = []
    size = 0
    for event in islice(events, 2000):
        taken.append(event)
        size += len(event) if isinstance(event, bytes) else 0
        if size >= _MAX_READ:
            break
    return taken


def _tar(file: IO[bytes], magic: bytes, size: int, members: _Members, limits: ArchiveLimits) -> Iterator[Event]:
    source: IO[bytes]
    if magic.startswith(b"\x1f\x8b"):
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    elif magic.startswith(b"BZh"):
        source = cast("IO[bytes]", bz2.BZ2File(file))
    elif magic.startswith(b"\xfd7zXZ\x00"):
        source = cast("IO[bytes]", lzma.LZMAFile(file))  # noqa: SIM115  reads a file that its caller closes
    else:
        source = file
    bounded = _Bounded(source, size, limits)
    with bounded.in_headers():  # it reads the first ones when it is opened
        tar = tarfile.open(fileobj=bounded, mode="r:", errorlevel=2)  # noqa: SIM115  closed below
    with tar:
        while True:
            with bounded.in_headers():
                member = tar.next()
            if member is None:
                break
            tar.members.clear()  # type: ignore[attr-defined]  # they would all be kept
            name = member.name
            if member.size < 0:
                raise refused(name, "its size is negative")
            if len(tar.pax_headers) > _MAX_GLOBAL:
                raise refused(name, f"more than {_MAX_GLOBAL} global headers come before it")
            if member.isdir():
                path = members.path(name, "directory")
                if path is not None:
                    yield TreeEntry(path, "directory", (member.mode & 0o777) | 0o700)
            elif member.issym():
                path = _named(members.path(name, "symlink"))
                yield members.symlink(name, path, member.linkname)
            elif member.islnk():
                path = _named(members.path(name, "file"))
                yield members.hard_link(name, path, member.linkname)
            elif member.isreg() and not member.issparse():
                path = _named(members.path(name, "file"))
                members.add_bytes(name, member.size)
                content = tar.extractfile(member)
                assert content is not None
                left = member.size
                while left > 0:
                    data = content.read(min(_CHUNK, left))
                    if not data:
                        raise refused(name, "the archive ends in the middle of it")
                    left -= len(data)
                    yield data
                yield TreeEntry(path, "file", member.mode & 0o777)
            else:
                raise refused(name, f"it is {_special(member)}")
    if bounded.last.strip(b"\0") or len(bounded.last) % tarfile.BLOCKSIZE:
        # tarfile takes a header that it cannot read for the end.
        raise tarfile.ReadError("it is damaged or cut off")


def _named(path: str | None) -> str:
    assert path is not None  # only a directory can be the root
    return path


def _special(member: tarfile.TarInfo) -> str:
    if member.issparse():
        return "a sparse file"
    if member.isfifo():
        return "a FIFO"
    return "a device" if member.isdev() else "of an unknown type"


def _zip(file: IO[bytes], size: int, members: _Members, limits: ArchiveLimits) -> Iterator[Event]:
    with zipfile.ZipFile(file) as archive:
        unpacked = 0
        for info in archive.infolist():
            name, mode = info.filename, info.external_attr >> 16
            if info.flag_bits & 0x1:
                raise refused(name, "it is encrypted")
            kind = stat.S_IFMT(mode)
            if info.is_dir():
                path = members.path(name, "directory")
                if path is not None:
                    yield TreeEntry(path, "directory", (mode & 0o777 or 0o755) | 0o700)
                continue
            if kind not in {0, stat.S_IFREG, stat.S_IFLNK}:
                raise refused(name, "it is a device, a FIFO or a socket")
            path = _named(members.path(name, "symlink" if kind == stat.S_IFLNK else "file"))
            members.add_bytes(name, info.file_size)
            with archive.open(info) as content:
                if kind == stat.S_IFLNK:
                    target = content.read(4001).decode("utf-8", "surrogateescape")
                    yield members.symlink(name, path, target)
                    continue
                left = info.file_size
                while data := content.read(_CHUNK):
                    left -= len(data)
                    unpacked += len(data)
                    if left < 0:
                        raise refused(name, "it is larger than it says")
                    _check_size(0, unpacked, size, limits)
                    yield data
            yield TreeEntry(path, "file", mode & 0o777 or 0o644)


class Packer:
    """Writes a tar.gz whose bytes depend on nothing but its entries. Files are added in any order, links come first."""

    def __init__(self, root: str, entries: Sequence[TreeEntry]) -> None:
        self._root = root
        self._files = {entry.path: entry for entry in entries if entry.kind == "file"}
        self._data: dict[str, bytes] = {}
        self._order = [entry.path for entry in entries if entry.kind == "file"]
        self._buffer = io.BytesIO()
        self._gzip = gzip.GzipFile(fileobj=self._buffer, mode="wb", compresslevel=6, mtime=0)
        self._tar = tarfile.TarFile(fileobj=self._gzip, mode="w", format=tarfile.PAX_FORMAT)
        for entry in entries:
            if entry.kind != "file":
                info = self._info(entry)
                info.type = tarfile.DIRTYPE if entry.kind == "directory" else tarfile.SYMTYPE
                info.linkname = entry.target
                self._tar.addfile(info)
        self._write_ready()

    def add_file(self, path: str, data: bytes) -> None:
        self._data[path] = data
        self._write_ready()

    def finish(self) -> bytes:
        self._write_ready()
        self._tar.close()
        self._gzip.close()
        return self._buffer.getvalue()

    def _write_ready(self) -> None:
        """Write what comes next in the fixed order as far as it is there."""
        while self._order:
            entry = self._files[self._order[0]]
            if entry.size and entry.path not in self._data:
                return
            info = self._info(entry)
            info.size = entry.size
            self._tar.addfile(info, io.BytesIO(self._data.pop(entry.path, b"")))
            self._order.pop(0)

    def _info(self, entry: TreeEntry) -> tarfile.TarInfo:
        info = tarfile.TarInfo(entry.path.removeprefix(self._root + "/"))
        info.mode = entry.mode
        return info
