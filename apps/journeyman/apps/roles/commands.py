"""The processes of the platform, each ``journeyman <role>``: thin, and imported only by the one that runs."""

import os
import sys
from urllib.parse import urlsplit

from journeyman.apps.exits import CommandError
from journeyman.platform.kit.settings import Settings


def load_settings() -> Settings:
    """The settings of this process; a wrong one is named, without its value."""
    from pydantic import ValidationError

    try:
        return Settings()
    except ValidationError as error:
        lines = ["The settings cannot be used:"]
        for entry in error.errors(include_url=False, include_input=False, include_context=False):
            name = ".".join(str(part) for part in entry["loc"])
            lines.append(f"  JOURNEYMAN_{name.upper()}: {entry['msg']}" if name else f"  {entry['msg']}")
        raise CommandError("\n".join(lines)) from None


def api() -> None:
    from journeyman.apps.roles.api import run_api

    run_api(load_settings())


def gateway() -> None:
    from journeyman.apps.roles.inference import run_gateway

    run_gateway(load_settings())


def worker(roles: str | None) -> None:
    from journeyman.apps.roles.worker import run_worker

    settings = load_settings()
    run_worker(settings.model_copy(update={"worker_roles": roles}) if roles else settings)


def replay_engine(host: str | None, port: int | None) -> None:
    from journeyman.apps.roles.inference import run_replay_engine

    settings = load_settings()
    address = urlsplit(settings.replay_url)
    run_replay_engine(settings, host or address.hostname or "127.0.0.1", port or address.port or 8702)


def vectors() -> None:
    from journeyman.platform.memory.vectors_server import main

    missing = [name for name in ("PATH", "PORT", "KEY") if not os.environ.get(f"JOURNEYMAN_VECTORS_{name}")]
    if missing:
        raise CommandError(
            f"Set {', '.join(f'JOURNEYMAN_VECTORS_{name}' for name in missing)}: where to keep the vectors and how to serve them."
        )
    main()


def fork_server() -> list[str] | None:
    """Returns None when it has ended, and in each process that it forked the arguments of the command to run."""
    from journeyman.apps.roles.fork_server import serve

    return serve()


def migrate() -> None:
    """Everything that must be there before the other roles start."""
    import asyncio

    from journeyman.platform.kit.errors import InvalidInput
    from journeyman.platform.kit.migrate import upgrade
    from journeyman.platform.kit.s3 import S3ObjectStore

    settings = load_settings()
    try:
        upgrade(settings.database_url)
    except InvalidInput as error:
        raise CommandError(error.message) from None
    asyncio.run(S3ObjectStore.from_settings(settings).ensure_bucket())
    print("The database is at the newest revision, and the bucket is there.", file=sys.stderr)
