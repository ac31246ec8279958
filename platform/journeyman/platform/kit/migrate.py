"""Bring the database to the newest revision. Alembic is loaded only where it is needed: a supervisor mostly does not."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.config import Config


def migrations_dir() -> Path:
    """In a checkout ``migrations/`` at its root; in a wheel the copy packed beside this package."""
    packed = Path(__file__).parents[1] / "_migrations"
    return packed if packed.is_dir() else Path(__file__).parents[4] / "migrations"


def migration_config(database_url: str) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    config.set_main_option("sqlalchemy.url", database_url.replace("%", "%%"))
    return config


def upgrade(database_url: str) -> None:
    """Run all outstanding revisions. Blocking, and with an event loop of its own: call it from a thread.

    Raises ``InvalidInput`` for a database whose encoding is not UTF-8.
    """
    from alembic import command

    command.upgrade(migration_config(database_url), "head")
