"""``journeyman migrate``: runs once, before the other roles start."""

import asyncio
import sys

from journeyman.apps.exits import CommandError
from journeyman.apps.roles.settings import load_settings
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.kit.migrate import upgrade
from journeyman.platform.kit.s3 import S3ObjectStore


def run_migrate() -> None:
    """Bring the database to the newest revision and make the bucket. Raises :class:`CommandError` on a refused database."""
    settings = load_settings()
    try:
        upgrade(settings.database_url)
    except InvalidInput as error:
        raise CommandError(error.message) from None
    asyncio.run(S3ObjectStore.from_settings(settings).ensure_bucket())
    print("The database is at the newest revision, and the bucket is there.", file=sys.stderr)
