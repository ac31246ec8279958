"""Who may ask, and for which project. Keys are 256 random bits, shown once, kept as their SHA-256.

A key works in one project. ``member`` and ``admin`` keys have no say beyond it; an ``operator`` key also administers the
other projects of its organization: it lists and creates projects and sets their budgets.
"""

import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import Conflict, Forbidden, NotFound, Unauthorized
from journeyman.platform.kit.ids import is_id, new_id
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.tenancy import repository
from journeyman.platform.tenancy.models import ApiKey, Organization, Project

Role = Literal["operator", "admin", "member"]

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
    role: Role

    @property
    def is_operator(self) -> bool:
        """Administers every project of the organization."""
        return self.role == "operator"

    @property
    def is_admin(self) -> bool:
        """Administers its own project."""
        return self.role in {"operator", "admin"}


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
        role=cast("Role", key.role),
    )


async def administered_project(session: AsyncSession, admin: Principal, project_id: str) -> Project:
    """A project that an admin key may administer: its own, or with an operator key any of its organization.

    Raises :class:`NotFound` for every other project, whether it exists or not.
    """
    reachable = project_id == admin.project_id or (admin.is_operator and is_id("project", project_id))
    project = await repository.project(session, admin.organization_id, project_id) if reachable else None
    if project is None:
        raise NotFound(f"Your key reaches no project {project_id[:80]}.", code="project_not_found")
    return project


async def create_key_for(session: AsyncSession, admin: Principal, name: str, role: Role) -> NewKey:
    """Create a key in the project of an admin key. Raises :class:`Forbidden` when a project's own key asks for an operator key."""
    if role == "operator" and not admin.is_operator:
        raise Forbidden(
            "Only an operator key can create an operator key; yours administers one project.", code="operator_required"
        )
    return await create_key(session, admin.project_id, name, role)


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


async def keys(session: AsyncSession, admin: Principal) -> Sequence[ApiKey]:
    """The keys of an admin key's project, newest first, revoked ones too. Operator keys are shown to operator keys only."""
    return await repository.keys_of(session, admin.project_id, operators=admin.is_operator)


async def revoke_key(session: AsyncSession, admin: Principal, key_id: str) -> ApiKey:
    """Revoke a key of the admin key's project at once and for good. A repeated call changes nothing.

    Raises :class:`NotFound` for a key that :func:`keys` does not show, and :class:`Conflict` for the last operator key and
    for the last key that administers the project.
    """
    admins = await repository.lock_admin_keys(session, admin.project_id)
    operators = [each for each, role in admins.items() if role == "operator"]
    if admin.is_operator and operators == [key_id]:
        raise Conflict(
            "This is the last operator key; without it no project can be created. Create another one first.",
            code="last_operator_key",
        )
    if list(admins) == [key_id]:
        raise Conflict(
            "This is the project's last admin key; without it no other key can be created. Create another one first.",
            code="last_admin_key",
        )
    key = None
    if is_id("api_key", key_id):
        key = await repository.revoke_key(session, admin.project_id, key_id, operators=admin.is_operator)
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
    """At the first start make the organization, the project and the operator key; afterwards only look.

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
        secret = await _operator_key(session)
        # Before the commit: a file without its key is replaced at the next start, a key without its file is lost.
        _write_private(path, secret)
    _log.info("tenancy.admin_key_created", path=str(path))
    return path


async def renew_admin_key(database: Database, data_dir: Path) -> Path:
    """Create another operator key in the first project and write it to the key file, after a loss of all keys."""
    path = data_dir / ADMIN_KEY_FILE
    async with database.transaction() as session:
        await repository.lock_bootstrap(session)
        _write_private(path, await _operator_key(session))
    _log.info("tenancy.admin_key_created", path=str(path))
    return path


async def _operator_key(session: AsyncSession) -> str:
    project = await repository.first_project(session)
    if project is None:
        organization = Organization(id=new_id("organization"), name="default", created_at=now())
        await repository.add_organization(session, organization)
        project = Project(id=new_id("project"), organization_id=organization.id, name="default", created_at=now())
        await repository.add_project(session, project)
    return (await create_key(session, project.id, "operator", "operator")).secret


def _write_private(path: Path, secret: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
