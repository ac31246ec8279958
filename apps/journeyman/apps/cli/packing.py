"""A directory as an archive to upload: the same bytes for the same files, whoever packs them and when."""

import fnmatch
import gzip
import os
import posixpath
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from journeyman.apps.cli.text import size, visible
from journeyman.apps.exits import CommandError

MAX_BYTES: Final = 1 << 30
"""Of unpacked files. More than that is hardly a workspace; the server has a limit of its own."""

_TIME: Final = 315_532_800
"""1980-01-01, the oldest time that zip tools can hold. Times are no part of a workspace."""

ALWAYS_EXCLUDED: Final = (".git",)


@dataclass
class Packed:
    """An open archive, to be read from its start, and what is worth telling about it."""

    file: BinaryIO
    length: int
    files: int = 0
    unpacked: int = 0
    notes: list[str] = field(default_factory=list)


def pack(directory: Path, *, exclude: Sequence[str] = (), include_git: bool = False) -> Packed:
    """Pack a directory. Symlinks stay symlinks; sockets and devices are left out, with a note.

    ``exclude`` holds patterns matched against names and against paths relative to the directory. Raises
    :class:`CommandError` for what cannot be packed: no directory, unreadable files, links that lead out, too much.
    """
    if not directory.is_dir():
        raise CommandError(f"{directory} is not a directory.")
    patterns = tuple(exclude) if include_git else (*ALWAYS_EXCLUDED, *exclude)
    packed = Packed(cast(BinaryIO, tempfile.TemporaryFile(prefix="journeyman-upload-")), 0)  # noqa: SIM115  handed on
    if not include_git and (directory / ".git").exists():
        packed.notes.append(".git is left out; --include-git sends the history along")
    try:
        with (
            gzip.GzipFile(
                filename="", mode="wb", fileobj=cast(IO[bytes], packed.file), mtime=0, compresslevel=6
            ) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for entry in _walk(directory, "", patterns):
                _add(archive, directory, entry, packed)
    except BaseException:
        packed.file.close()
        raise
    packed.length = packed.file.tell()
    packed.file.seek(0)
    return packed


def open_archive(path: Path) -> Packed:
    """An archive that exists already: ``.tar.gz`` as it is, ``.tar`` compressed on the way."""
    with path.open("rb") as probe:
        start = probe.read(265)
    if start.startswith(b"\x1f\x8b"):
        return Packed(path.open("rb"), path.stat().st_size)
    if not start[257:].startswith(b"ustar"):
        raise CommandError(f"{path} is neither a directory nor a .tar.gz or .tar archive.")
    packed = Packed(cast(BinaryIO, tempfile.TemporaryFile(prefix="journeyman-upload-")), 0)  # noqa: SIM115
    with (
        path.open("rb") as source,
        gzip.GzipFile(filename="", mode="wb", fileobj=cast(IO[bytes], packed.file), mtime=0) as zipped,
    ):
        while chunk := source.read(1 << 20):
            zipped.write(chunk)
    packed.length = packed.file.tell()
    packed.file.seek(0)
    return packed


def _walk(directory: Path, prefix: str, patterns: Sequence[str]) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(directory / prefix if prefix else directory), key=lambda entry: entry.name)
    except OSError as error:
        raise CommandError(f"Cannot read {visible(str(error.filename))}: {error.strerror}.") from None
    for entry in entries:
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        if any(fnmatch.fnmatch(entry.name, pattern) or fnmatch.fnmatch(path, pattern) for pattern in patterns):
            continue
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(directory, path, patterns)


def _add(archive: tarfile.TarFile, directory: Path, path: str, packed: Packed) -> None:
    source = directory / path
    status = source.lstat()
    entry = tarfile.TarInfo(path)
    entry.mtime = _TIME
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    if stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, _link(source, path), 0o777
        archive.addfile(entry)
    elif stat.S_ISDIR(status.st_mode):
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
    elif stat.S_ISREG(status.st_mode):
        packed.unpacked += status.st_size
        if packed.unpacked > MAX_BYTES:
            raise CommandError(
                f"The directory holds more than {size(MAX_BYTES)}. Leave out what the task does not need: --exclude PATTERN "
                "(for example --exclude node_modules)."
            )
        entry.size = status.st_size
        entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        try:
            with source.open("rb") as file:
                archive.addfile(entry, file)
        except PermissionError:
            raise CommandError(
                f"Cannot read {visible(path)}: permission denied. Leave it out with --exclude."
            ) from None
        except OSError as error:
            raise CommandError(
                f"{visible(path)} changed or vanished while it was packed ({error}). Try again."
            ) from None
        packed.files += 1
    else:
        packed.notes.append(f"{visible(path)} is no file, directory or link; left out")


def _link(source: Path, path: str) -> str:
    target = os.readlink(source)  # noqa: PTH115  Path would tidy the target up; it is kept as it is
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if target.startswith("/") or inside == ".." or inside.startswith("../"):
        raise CommandError(
            f"{visible(path)} is a link to {visible(target)}, which leads out of the directory. Leave it out with --exclude."
        )
    return target
