"""The first key: made once, kept private, replaceable by the operator."""

import asyncio
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Unauthorized
from journeyman.platform.tenancy import service
from journeyman.platform.tenancy.models import ApiKey, Organization, Project


async def test_first_start_makes_one_key_whoever_starts(clean_database: Database, tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    paths = await asyncio.gather(*(service.bootstrap(clean_database, directory) for _ in range(8)))
    assert set(paths) == {directory / "admin.key"}
    secret = paths[0].read_text().strip()
    assert secret.startswith("jm_")
    assert len(secret) >= 43
    assert stat.S_IMODE(paths[0].stat().st_mode) == 0o600
    assert [file.name for file in directory.iterdir()] == ["admin.key"]
    async with clean_database.transaction() as session:
        for model in (Organization, Project, ApiKey):
            assert await session.scalar(sa.select(sa.func.count()).select_from(model)) == 1
        principal = await service.authenticate(session, secret)
        stored = (await session.scalars(sa.select(ApiKey))).one()
    assert (principal.role, principal.project_name) == ("operator", "default")
    assert secret not in (stored.hash, stored.name)


async def test_the_key_is_never_logged(
    clean_database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = await service.bootstrap(clean_database, tmp_path)
    said = capfd.readouterr()
    assert path.read_text().strip() not in said.out + said.err


async def test_later_starts_change_nothing(clean_database: Database, tmp_path: Path) -> None:
    secret = (await service.bootstrap(clean_database, tmp_path)).read_text()
    assert (await service.bootstrap(clean_database, tmp_path)).read_text() == secret


async def test_a_lost_file_is_not_made_up_but_can_be_renewed(clean_database: Database, tmp_path: Path) -> None:
    path = await service.bootstrap(clean_database, tmp_path)
    old = path.read_text().strip()
    path.unlink()
    await service.bootstrap(clean_database, tmp_path)
    assert not path.exists()
    renewed = await service.renew_admin_key(clean_database, tmp_path)
    async with clean_database.transaction() as session:
        new = await service.authenticate(session, renewed.read_text().strip())
        assert new.project_id == (await service.authenticate(session, old)).project_id


async def test_renewing_by_command(clean_database: Database, postgres_url: str, tmp_path: Path) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "journeyman.platform.tenancy", "new-admin-key"],
        env={"JOURNEYMAN_DATABASE_URL": postgres_url, "JOURNEYMAN_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    secret = (tmp_path / "admin.key").read_text().strip()
    assert str(tmp_path / "admin.key") in done.stdout
    assert secret not in done.stdout + done.stderr
    async with clean_database.transaction() as session:
        assert (await service.authenticate(session, secret)).role == "operator"


@pytest.mark.parametrize("secret", ["", "jm_", "jm_unknown", "\ud800", "jm_\x00", "x" * 10_000])
async def test_keys_that_do_not_exist(database: Database, secret: str) -> None:
    async with database.transaction() as session:
        with pytest.raises(Unauthorized):
            await service.authenticate(session, secret)
