"""Migrations of the embedded database, left out when nothing can have changed: loading Alembic takes most of a second."""

import asyncio
import hashlib
from pathlib import Path

import asyncpg

from journeyman.apps.embedded.datadir import DataDirectory
from journeyman.platform.kit.migrate import migrations_dir, upgrade

_MARK = "schema.json"


async def bring_up_to_date(directory: DataDirectory, database_url: str) -> None:
    """Run outstanding revisions, unless the revisions are those of the last start and the database is at the last one."""
    digest = _digest(migrations_dir())
    mark = directory.read(_MARK) or {}
    if mark.get("revisions") == digest and mark.get("head") == await _head(database_url):
        return
    await asyncio.to_thread(upgrade, database_url)
    directory.write(_MARK, {"revisions": digest, "head": await _head(database_url)})


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted((folder / "versions").glob("*.py")):
        whole.update(f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


async def _head(database_url: str) -> str | None:
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""), timeout=5, ssl=False)
    try:
        rows = await connection.fetch("SELECT version_num FROM alembic_version ORDER BY version_num")
        return ",".join(row["version_num"] for row in rows)
    except asyncpg.UndefinedTableError:
        return None
    finally:
        await connection.close()
