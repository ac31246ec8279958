"""Archives from outside: what is taken in, and what is refused, with the member named."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from journeyman.platform.checkpoints.archive import ArchiveLimits
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.kit.s3 import S3ObjectStore
from support.sandboxes import shell


def member(name: str, content: bytes = b"", **attributes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def zipped(*members: tuple[str, bytes, int]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


GOOD = tar(
    member("./", type=tarfile.DIRTYPE, mode=0o755),
    member("./pkg/", type=tarfile.DIRTYPE, mode=0o755),
    member("./pkg/run.sh", b"#!/bin/sh\necho hi\n", mode=0o4755),
    member("deep/er/file", b"x" * 5000),
    member("b\udcff", b"bytes"),
    link("pkg/up", "../deep/er"),
    hard("same", "./pkg/run.sh"),
)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["tar", "gz", "bz2", "xz"])
async def test_tar(snapshots: SnapshotStore, project_id: str, pack):
    taken = await snapshots.from_archive(project_id, pack(GOOD))
    manifest = await snapshots.manifest(project_id, taken.digest)
    assert {entry.path: (entry.kind, entry.mode) for entry in manifest.entries} == {
        "workspace/b\udcff": ("file", 0o644),
        "workspace/deep": ("directory", 0o755),
        "workspace/deep/er": ("directory", 0o755),
        "workspace/deep/er/file": ("file", 0o644),
        "workspace/pkg": ("directory", 0o755),
        "workspace/pkg/run.sh": ("file", 0o755),
        "workspace/pkg/up": ("symlink", 0o777),
        "workspace/same": ("file", 0o755),
    }
    assert await snapshots.read(project_id, taken.digest, "workspace/same") == b"#!/bin/sh\necho hi\n"
    assert (taken.files, taken.bytes) == (4, 5000 + 5 + 36)


async def test_zip(snapshots: SnapshotStore, project_id: str, tmp_path: Path):
    path = tmp_path / "a.zip"
    path.write_bytes(
        zipped(("d/", b"", 0o40755), ("d/run", b"x", 0o100755), ("plain", b"yy", 0o600), ("l", b"d/run", 0o120777))
    )
    taken = await snapshots.from_archive(project_id, path)
    manifest = await snapshots.manifest(project_id, taken.digest)
    assert [(entry.path, entry.kind, entry.mode, entry.target) for entry in manifest.entries] == [
        ("workspace/d", "directory", 0o755, ""),
        ("workspace/d/run", "file", 0o755, ""),
        ("workspace/l", "symlink", 0o777, "d/run"),
        ("workspace/plain", "file", 0o600, ""),
    ]


async def test_empty_archives(snapshots: SnapshotStore, project_id: str):
    for data in (tar(), zipped()):
        assert (await snapshots.from_archive(project_id, data)).files == 0


async def test_round_trip(snapshots: SnapshotStore, project_id: str):
    taken = await snapshots.from_archive(project_id, GOOD)
    packed = await snapshots.to_archive(project_id, taken.digest)
    assert packed == await snapshots.to_archive(project_id, taken.digest)
    assert (await snapshots.from_archive(project_id, packed)).digest == taken.digest


async def test_of_a_sandbox_and_into_one(snapshots: SnapshotStore, project_id: str, lease):
    first, second = await lease(), await lease()
    await shell(
        first, "mkdir a b; echo 1 > a/1; seq 100000 > b/2; ln -s ../b/2 a/l; chmod 700 a/1; echo r > /artifacts/r"
    )
    taken = await snapshots.capture(first, project_id, None)
    uploaded = await snapshots.from_archive(project_id, await snapshots.to_archive(project_id, taken.digest))
    await snapshots.restore(second, project_id, uploaded.digest)
    listing = "find . -mindepth 1 -printf '%p %y %m %l\\n' | sort; cat a/1 b/2 | sha256sum; ls /artifacts"
    one, two = await shell(first, listing), await shell(second, listing)
    assert one.output.removesuffix(b"r\n") == two.output


@pytest.mark.parametrize(
    ("data", "named", "why"),
    [
        (tar(member("../x", b"x")), "../x", r"'\.\.'"),
        (tar(member("a/../../x", b"x")), "a/../../x", r"'\.\.'"),
        (tar(member("/etc/x", b"x")), "/etc/x", "absolute"),
        (tar(member("n" * 256, b"x")), "n" * 256, "longer"),
        (tar(link("l", "/etc/passwd")), "l", "absolute"),
        (tar(link("l", "../x")), "l", "out of the archive"),
        (tar(link("d/l", "../../x")), "d/l", "out of the archive"),
        (tar(link("d/a", ".."), link("b", "d/a/../x")), "b", "out of the archive"),
        (tar(link("a", "b"), link("b", "a")), "a", "circle"),
        (tar(link("l", "d"), member("l/x", b"x")), "l/x", "below a member that is a symlink"),
        (tar(member("f", b"x"), member("f/x", b"x")), "f/x", "below a member that is a file"),
        (tar(member("f/x", b"x"), member("f", b"x")), "f", "twice"),
        (tar(member("f", b"x"), member("./f", b"y")), "./f", "twice"),
        (tar(member("f", b"x"), hard("h", "f"), member("h", b"evil")), "h", "twice"),
        (tar(link("l", "f"), member("l", b"evil")), "l", "twice"),
        (tar(hard("h", "/etc/passwd")), "h", "hard link"),
        (tar(hard("h", "../x")), "h", "hard link"),
        (tar(hard("h", "later"), member("later", b"x")), "h", "hard link"),
        (tar(link("l", "f"), hard("h", "l")), "h", "hard link"),
        (tar(member("p", type=tarfile.FIFOTYPE)), "p", "FIFO"),
        (tar(member("c", type=tarfile.CHRTYPE)), "c", "device"),
        (tar(member("b", type=tarfile.BLKTYPE)), "b", "device"),
        (zipped(("../x", b"x", 0)), "../x", r"'\.\.'"),
        (zipped(("/x", b"x", 0)), "/x", "absolute"),
        (zipped(("l", b"../x", 0o120777)), "l", "out of the archive"),
        (zipped(("l", b"/etc/passwd", 0o120777)), "l", "absolute"),
        (zipped(("p", b"", 0o010644)), "p", "FIFO"),
        (zipped(("l", b"d", 0o120777), ("l/x", b"x", 0)), "l/x", "below"),
    ],
)
async def test_refused(snapshots: SnapshotStore, project_id: str, object_store: S3ObjectStore, data, named, why):
    with pytest.raises(InvalidInput, match=why) as caught:
        await snapshots.from_archive(project_id, data)
    assert repr(named) in caught.value.message
    assert caught.value.details["member"] == repr(named)
    assert not [key for key in await object_store.list_keys(project_id) if "/snapshots/" in key]


async def test_sparse_files_are_refused(snapshots: SnapshotStore, project_id: str, lease):
    sandbox = await lease()
    await shell(sandbox, "truncate -s 20M holes; tar --sparse -cf /tmp/a.tar holes")
    with pytest.raises(InvalidInput, match="sparse"):
        await snapshots.from_archive(project_id, await sandbox.read_file("/tmp/a.tar"))


def block(name: str, size: bytes, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> bytes:
    """A member whose header says any size."""
    info = tarfile.TarInfo(name)
    info.type = kind
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT)[:512])
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content + bytes(-len(content) % 512)


def octal(size: int) -> bytes:
    return b"%011o\0" % size


def binary(size: int) -> bytes:
    """The other way to write a number, which can be negative."""
    return (b"\xff" if size < 0 else b"\x80") + size.to_bytes(11, "big", signed=True)


def extended(*records: tuple[str, str], kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A header of the pax format, for the member after it or, with another kind, for all."""
    data = b""
    for key, value in records:
        rest = f" {key}={value}\n".encode()
        length = len(rest)
        while length != len(str(length)) + len(rest):
            length = len(str(length)) + len(rest)
        data += str(length).encode() + rest
    return block("pax", octal(len(data)), data, kind)


END = bytes(1024)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["tar", "gz"])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (block("f", binary(-1)) + END, "size is negative"),
        (block("f", binary(-512)) + END, "size is negative"),
        (block("d", binary(-(2**80)), kind=tarfile.DIRTYPE) + END, "negative"),
        (block("l", binary(-1), kind=tarfile.SYMTYPE) + END, "negative"),
        (extended(("size", "-1")) + block("f", octal(1), b"x") + END, "negative"),
        (extended(("size", "-1024")) + block("f", octal(1), b"x") + END, "negative"),
        (extended(("GNU.sparse.realsize", "-1")) + block("f", octal(1), b"x") + END, "negative"),
        (extended(("size", "-1"), kind=tarfile.XGLTYPE) + block("f", octal(1), b"x") + END, "negative"),
        (extended(("GNU.sparse.size", "9")) + block("f", octal(1), b"x") + END, "sparse"),
        (extended(("GNU.sparse.realsize", "2000")) + block("f", octal(1), b"x") + block("g", octal(0)) + END, "size"),
        (block("f", binary(2**80)) + END, "more than"),
        (extended(("size", str(2**80))) + block("f", octal(1), b"x") + END, "more than"),
        (extended(("comment", "x" * 2**20)) + block("f", octal(0)) + END, "headers"),
        (extended(*((f"k{n}", "v") for n in range(1100)), kind=tarfile.XGLTYPE) + block("f", octal(0)) + END, "global"),
        (extended(("comment", "x")) * 1500 + block("f", octal(0)) + END, "headers|recursion"),
    ],
    ids=range(15),
)
async def test_numbers_that_lie(snapshots: SnapshotStore, project_id: str, data: bytes, why: str, pack):
    with pytest.raises(InvalidInput, match=why):
        await snapshots.from_archive(project_id, pack(data))


@pytest.mark.parametrize("kind", ["old", "new"])
async def test_the_map_of_a_sparse_file_is_bounded(snapshots: SnapshotStore, project_id: str, kind: str):
    """It is in memory before the file is refused for being sparse."""
    if kind == "old":
        header = bytearray(block("f", octal(0), kind=tarfile.GNUTYPE_SPARSE))
        header[482] = 1
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        more = (b"%011o\0%011o\0" % (1, 1)) * 21 + b"\1" + bytes(7)
        data = bytes(header) + more * 4000
    else:
        records = (("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "1"))
        map_ = b"1000000\n" + b"1\n" * 2_000_000
        data = extended(*records) + block("f", octal(len(map_)), map_)
    with pytest.raises(InvalidInput, match="headers"):
        await snapshots.from_archive(project_id, gzip.compress(data + END))


async def test_negative_sizes_do_not_make_room(snapshots: SnapshotStore, project_id: str):
    limits = ArchiveLimits(max_bytes=1000)
    data = block("a", binary(-(2**40))) + block("b", octal(1500), bytes(1500)) + END
    with pytest.raises(InvalidInput, match="negative"):
        await SnapshotStore(snapshots._store, archive_limits=limits).from_archive(project_id, data)


async def test_what_tools_write_is_taken(snapshots: SnapshotStore, project_id: str, lease):
    """Long names, extended headers, attributes, in every format that tar knows; and what git archive adds."""
    sandbox = await lease()
    long = "/".join(["d" * 90] * 3)
    await shell(sandbox, f"mkdir -p {long}; seq 100000 > {long}/f; ln -s {long}/f l; touch -d 1960-01-01 {long}/f")
    digests = set()
    for form in ("gnu", "pax", "posix", "oldgnu"):
        packed = await shell(sandbox, f"tar --format={form} -czf /tmp/{form}.tgz .")
        assert packed.exit_code == 0
        data = await sandbox.read_file(f"/tmp/{form}.tgz")
        digests.add((await snapshots.from_archive(project_id, data)).digest)
    assert len(digests) == 1
    data = extended(("comment", "0" * 40), kind=tarfile.XGLTYPE) + block("f", octal(1), b"x") + END
    assert (await snapshots.from_archive(project_id, data)).files == 1


async def test_encrypted_zip_is_refused(snapshots: SnapshotStore, project_id: str):
    data = bytearray(zipped(("secret", b"x", 0)))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(signature) + offset
        data[at] |= 1
    with pytest.raises(InvalidInput, match="encrypted"):
        await snapshots.from_archive(project_id, bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\0" * 100,
        b"x" * 5000,
        gzip.compress(GOOD)[:-200],
        GOOD[:700],
        GOOD[:512] + b"x" * 512 + GOOD[1024:],
        bz2.compress(GOOD)[:50],
        b"\xfd7zXZ\x00junk",
        b"PK\x03\x04junk",
        zipped(("a", b"x" * 1000, 0))[:-30],
        b"\x28\xb5\x2f\xfd" + bytes(50),
        gzip.compress(b"no tar at all" * 100),
    ],
    ids=range(13),
)
async def test_unreadable(snapshots: SnapshotStore, project_id: str, data: bytes):
    with pytest.raises(InvalidInput) as caught:
        await snapshots.from_archive(project_id, data)
    assert caught.value.code == "bad_archive"


class TestBombs:
    LIMITS = ArchiveLimits(max_bytes=20_000_000, max_members=200, max_ratio=100, ratio_floor=1_000_000)

    @pytest.fixture
    def strict(self, object_store: S3ObjectStore) -> SnapshotStore:
        return SnapshotStore(object_store, archive_limits=self.LIMITS)

    async def test_ratio(self, strict: SnapshotStore, project_id: str):
        zeros = bytes(15_000_000)
        for data in (
            gzip.compress(tar(member("z", zeros))),
            lzma.compress(tar(member("z", zeros))),
            zipped(("z", zeros, 0)),
        ):
            with pytest.raises(InvalidInput, match="times its size"):
                await strict.from_archive(project_id, data)

    async def test_size(self, strict: SnapshotStore, project_id: str):
        data = tar(*(member(f"{number}", bytes(8_000_000)) for number in range(3)))
        with pytest.raises(InvalidInput, match="more than 20000000 bytes"):
            await strict.from_archive(project_id, data)

    async def test_a_size_that_is_only_claimed(self, strict: SnapshotStore, project_id: str):
        info, _ = member("huge")
        info.size = 8**11
        with pytest.raises(InvalidInput, match="huge"):
            await strict.from_archive(project_id, info.tobuf() + bytes(1024))

    async def test_members(self, strict: SnapshotStore, project_id: str):
        for data in (tar(*(member(f"{n}") for n in range(201))), zipped(*((f"{n}", b"", 0) for n in range(201)))):
            with pytest.raises(InvalidInput, match="more than 200 members"):
                await strict.from_archive(project_id, data)

    async def test_a_header_without_end(self, strict: SnapshotStore, project_id: str):
        info = tarfile.TarInfo("x")
        info.type, info.size = tarfile.XHDTYPE, 15_000_000
        data = info.tobuf(tarfile.USTAR_FORMAT) + bytes(15_000_000) + bytes(2048)
        for packed in (data, gzip.compress(data)):
            with pytest.raises(InvalidInput):
                await strict.from_archive(project_id, packed)

    async def test_a_zip_member_larger_than_it_says(self, strict: SnapshotStore, project_id: str):
        data = bytearray(zipped(("a", b"x" * 5000, 0)))
        for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            struct.pack_into("<I", data, data.index(signature) + offset, 10)
        with pytest.raises(InvalidInput):
            await strict.from_archive(project_id, bytes(data))
