"""What the migration refuses to begin with."""

import asyncio
import os
import secrets
import subprocess
import sys

import asyncpg


async def test_a_database_that_cannot_hold_every_character_is_refused(postgres_url: str) -> None:
    name = f"ascii_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
    try:
        await connection.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        environment = os.environ | {"JOURNEYMAN_DATABASE_URL": f"{postgres_url.rsplit('/', 1)[0]}/{name}"}
        command = [sys.executable, "-m", "journeyman.apps.cli.main", "migrate"]
        done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, check=False)
    finally:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await connection.close()
    assert done.returncode == 2, done.stderr
    assert b"SQL_ASCII" in done.stderr
    assert b"Traceback" not in done.stderr
