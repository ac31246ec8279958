"""Uploads: taken in whole or refused whole, with the member at fault named."""

import asyncio
import hashlib
import io
import stat
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.settings import Settings
from journeyman.platform.uploads.models import Upload
from support.api import Caller, RunningApi, api_settings, calling, fields_of, running, served


def tar(*members: tuple[str | tarfile.TarInfo, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for member, data in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


async def uploads(database: Database, project_id: str) -> int:
    async with database.transaction() as session:
        count = await session.scalar(
            sa.select(sa.func.count()).select_from(Upload).where(Upload.project_id == project_id)
        )
    return count or 0


@pytest.mark.parametrize(
    "archive",
    [
        tar(("src/a.py", b"print(1)\n"), ("b", b"\x00\xff"), mode="w"),
        tar(("src/a.py", b"print(1)\n"), ("b", b"\x00\xff")),
        zipped(("src/a.py", b"print(1)\n"), ("b", b"\x00\xff")),
    ],
    ids=["tar", "tar.gz", "zip"],
)
async def test_an_archive_becomes_a_workspace(api: RunningApi, caller: Caller, archive: bytes) -> None:
    response = await caller.post("/v1/uploads?name=my%20code", content=archive)
    assert response.status_code == 201, response.text
    upload = response.json()
    assert (upload["name"], upload["size"], upload["files"]) == ("my code", len(archive), 2)
    assert upload["digest"] == hashlib.sha256(archive).hexdigest()
    data = await api.resources[SnapshotStore].read(caller.project_id, upload["snapshot"], "workspace/src/a.py")
    assert data == b"print(1)\n"
    task = await caller.submit(workspace={"source": "archive", "upload_id": upload["id"]})
    assert task["workspace"] == {"source": "archive", "upload_id": upload["id"]}


async def test_as_a_form(caller: Caller) -> None:
    archive = tar(("a", b"1"))
    response = await caller.post("/v1/uploads", files={"file": ("work.tar.gz", archive, "application/gzip")})
    assert response.status_code == 201, response.text
    assert response.json()["name"] == "work.tar.gz"
    wrong = await caller.post("/v1/uploads", files={"other": ("x", archive)})
    assert fields_of(wrong) == {"file"}
    many = await caller.post("/v1/uploads", files=[("file", ("x", archive)), ("file", ("y", archive))])
    assert many.status_code == 400
    broken = await caller.post(
        "/v1/uploads", content=b"no form at all", headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert broken.status_code in {400, 422}
    assert (
        await caller.post("/v1/uploads", content=b"", headers={"content-type": "multipart/form-data"})
    ).status_code in {400, 422}


def device() -> tarfile.TarInfo:
    info = special("dev/sda", tarfile.BLKTYPE)
    info.devmajor, info.devminor = 8, 0
    return info


def zip_link(name: str, target: str) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, target.encode()


@pytest.mark.parametrize(
    ("archive", "member"),
    [
        (tar(("../out", b"x")), "../out"),
        (tar(("a/../../out", b"x")), "a/../../out"),
        (tar(("/etc/passwd", b"x")), "/etc/passwd"),
        (tar((special("link", tarfile.SYMTYPE, "/etc"), b"")), "link"),
        (tar((special("link", tarfile.SYMTYPE, "../.."), b"")), "link"),
        (tar((special("hard", tarfile.LNKTYPE, "../../etc/passwd"), b"")), "hard"),
        (tar((device(), b"")), "dev/sda"),
        (tar((special("fifo", tarfile.FIFOTYPE), b"")), "fifo"),
        (tar(("ok", b"x"), (special("d", tarfile.SYMTYPE, "."), b""), ("d/x", b"x")), "d/x"),
        (zipped(("../out", b"x")), "../out"),
        (zipped(zip_link("link", "/etc/passwd")), "link"),
    ],
)
async def test_refused_with_the_member_named(caller: Caller, database: Database, archive: bytes, member: str) -> None:
    response = await caller.post("/v1/uploads", content=archive)
    assert response.status_code == 422, response.text
    assert member in response.json()["detail"]
    assert await uploads(database, caller.project_id) == 0


@pytest.mark.parametrize("body", [b"", b"hello", b"\x1f\x8b\x08broken", b"PK\x03\x04broken", b"\x00" * 100])
async def test_what_is_no_archive(caller: Caller, database: Database, body: bytes) -> None:
    response = await caller.post("/v1/uploads", content=body)
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert await uploads(database, caller.project_id) == 0


async def test_a_bomb(caller: Caller) -> None:
    bomb = zipped(*((f"f{number}", b"\x00" * 50_000_000) for number in range(4)))
    assert len(bomb) < 1_000_000
    response = await caller.post("/v1/uploads", content=bomb)
    assert response.status_code in {413, 422}, response.text


async def test_larger_than_allowed(clean_settings: Settings, tmp_path: Path) -> None:
    settings = api_settings(clean_settings, tmp_path, upload_max_bytes=1000)
    async with running(settings) as api, api.caller() as caller:
        big = b"x" * 200_000
        assert (await caller.post("/v1/uploads", content=big)).status_code == 413
        assert (await caller.post("/v1/uploads", content=b"x" * 1001)).status_code == 413
        assert (await caller.post("/v1/uploads", files={"file": ("x", b"x" * 2000)})).status_code == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1000

        assert (await caller.post("/v1/uploads", content=chunks())).status_code == 413


async def test_a_large_archive_over_a_socket(clean_settings: Settings, database: Database) -> None:
    """Larger than other bodies may be; many at once."""
    noise = bytes(range(256)) * 4096 * 8
    archive = tar(("big", noise), mode="w")
    async with served(clean_settings) as api, calling(api.url, database) as caller:
        responses = await asyncio.gather(*(caller.post("/v1/uploads", content=archive) for _ in range(4)))
        assert {response.status_code for response in responses} == {201}
        assert len({response.json()["snapshot"] for response in responses}) == 1


async def test_needs_a_key_before_a_byte_is_read(api: RunningApi) -> None:
    async with api.caller() as caller:
        response = await caller.post("/v1/uploads", content=tar(("a", b"")), headers={"Authorization": "Bearer jm_no"})
    assert response.status_code == 401
