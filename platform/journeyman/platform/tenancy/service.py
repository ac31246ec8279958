"""Who may ask, and for which project. Keys are 256 random bits, shown once, kept as their SHA-256."""

import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict, NotFound, Unauthorized
from journeyman.platform.kit.ids import is_id, new_id
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.tenancy import repository
from journeyman.platform.tenancy.models import ApiKey, Organization, Project

Role = Literal["admin", "member"]

KEY_PREFIX: Final = "jm_"
ADMIN_KEY_FILE: Final = "admin.key"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request: a key of a project."""

    organization_id: str
    project_id: str
    project_name: str
    key_id: str
    key_name: str
    role: str


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made. ``secret`` is never seen again."""

    record: ApiKey
    secret: str


def hash_key(secret: str) -> str:
    """As it is stored: SHA-256 in hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


async def authenticate(session: AsyncSession, secret: str) -> Principal:
    """The key's project. Raises :class:`Unauthorized` for a key that does not exist or was revoked."""
    found = await repository.key_by_hash(session, hash_key(secret)) if secret.startswith(KEY_PREFIX) else None
    if found is None:
        raise Unauthorized("The API key does not exist or was revoked. Make a new one, or check for a cut-off copy.")
    key, project = found
    return Principal(
        organization_id=project.organization_id,
        project_id=project.id,
        project_name=project.name,
        key_id=key.id,
        key_name=key.name,
        role=key.role,
    )


async def create_key(session: AsyncSession, project_id: str, name: str, role: Role) -> NewKey:
    """A new key of the project."""
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    record = ApiKey(
        id=new_id("api_key"),
        project_id=project_id,
        name=name,
        role=role,
        hash=hash_key(secret),
        created_at=now(),
        revoked_at=None,
    )
    await repository.add_key(session, record)
    return NewKey(record, secret)


async def keys(session: AsyncSession, project_id: str) -> Sequence[ApiKey]:
    """The project's keys, newest first, revoked ones too."""
    return await repository.keys_of(session, project_id)


async def revoke_key(session: AsyncSession, project_id: str, key_id: str) -> ApiKey:
    """Revoke a key, at once and for good; again is no error. The last admin key of a project stays: :class:`Conflict`."""
    admins = await repository.lock_admin_keys(session, project_id)
    if admins == [key_id]:
        raise Conflict(
            "This is the project's last admin key; without it nobody could make another. Make a new one first.",
            code="last_admin_key",
        )
    key = await repository.revoke_key(session, project_id, key_id) if is_id("api_key", key_id) else None
    if key is None:
        raise NotFound(f"This project has no API key {key_id[:80]}.")
    return key


async def create_project(session: AsyncSession, organization_id: str, name: str) -> tuple[Project, NewKey]:
    """A new project with its first admin key."""
    project = Project(id=new_id("project"), organization_id=organization_id, name=name, created_at=now())
    await repository.add_project(session, project)
    return project, await create_key(session, project.id, "admin", "admin")


async def projects(session: AsyncSession, organization_id: str) -> Sequence[Project]:
    """The organization's projects, oldest first."""
    return await repository.projects_of(session, organization_id)


async def bootstrap(database: Database, data_dir: Path) -> Path:
    """At the first start make the organization, the project and the admin key; afterwards only look.

    Returns the path of the key's file (mode 0600). Several processes may call this at once.
    """
    path = data_dir / ADMIN_KEY_FILE
    async with database.transaction() as session:
        await repository.lock_bootstrap(session)
        if await repository.any_live_key(session):
            if not path.exists():
                _log.warning(
                    "tenancy.admin_key_file_missing",
                    path=str(path),
                    meaning="API keys exist, but the file with the first one is not here; a key cannot be shown again.",
                    remedy="If nobody has a key: python -m journeyman.platform.tenancy new-admin-key",
                )
            return path
        secret = await _first_admin_key(session)
        # Before the commit: a file without its key is replaced at the next start, a key without its file is lost.
        _write_private(path, secret)
    _log.info("tenancy.admin_key_created", path=str(path))
    return path


async def renew_admin_key(database: Database, data_dir: Path) -> Path:
    """Make another admin key for the first project and write it to the key file. For who has lost all keys."""
    path = data_dir / ADMIN_KEY_FILE
    async with database.transaction() as session:
        await repository.lock_bootstrap(session)
        _write_private(path, await _first_admin_key(session))
    _log.info("tenancy.admin_key_created", path=str(path))
    return path


async def _first_admin_key(session: AsyncSession) -> str:
    project = await repository.first_project(session)
    if project is None:
        organization = Organization(id=new_id("organization"), name="default", created_at=now())
        await repository.add_organization(session, organization)
        project = Project(id=new_id("project"), organization_id=organization.id, name="default", created_at=now())
        await repository.add_project(session, project)
    return (await create_key(session, project.id, "admin", "admin")).secret


def _write_private(path: Path, secret: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
