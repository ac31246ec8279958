"""Organizations, projects and keys in PostgreSQL."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.clock import now
from journeyman.platform.tenancy.models import ApiKey, Organization, Project

_BOOTSTRAP_LOCK = 0x6A6D_7465_6E61_6E74
"""Advisory lock: of several API processes that start at once, one makes the first key."""


async def lock_bootstrap(session: AsyncSession) -> None:
    """Wait for whoever makes a first key, until the transaction ends."""
    await session.execute(sa.select(sa.func.pg_advisory_xact_lock(_BOOTSTRAP_LOCK)))


async def any_live_key(session: AsyncSession) -> bool:
    """Whether any project has a key that was not revoked."""
    return bool(await session.scalar(sa.select(sa.exists().where(ApiKey.revoked_at.is_(None)))))


async def first_project(session: AsyncSession) -> Project | None:
    """The oldest of all organizations."""
    return await session.scalar(sa.select(Project).order_by(Project.created_at, Project.id).limit(1))


async def add_organization(session: AsyncSession, organization: Organization) -> None:
    session.add(organization)
    await session.flush()


async def add_project(session: AsyncSession, project: Project) -> None:
    session.add(project)
    await session.flush()


async def add_key(session: AsyncSession, key: ApiKey) -> None:
    session.add(key)
    await session.flush()


async def key_by_hash(session: AsyncSession, digest: str) -> tuple[ApiKey, Project] | None:
    """A key that was not revoked, with its project. ``digest``: SHA-256 of the secret, in hex."""
    row = (
        await session.execute(
            sa.select(ApiKey, Project)
            .join(Project, Project.id == ApiKey.project_id)
            .where(ApiKey.hash == digest, ApiKey.revoked_at.is_(None))
        )
    ).one_or_none()
    return None if row is None else (row[0], row[1])


def _keys_of(project_id: str, *, operators: bool) -> sa.Select[ApiKey]:
    """The keys of a project, operator keys among them only when asked for."""
    found = sa.select(ApiKey).where(ApiKey.project_id == project_id)
    return found if operators else found.where(ApiKey.role != "operator")


async def keys_of(session: AsyncSession, project_id: str, *, operators: bool) -> Sequence[ApiKey]:
    """Newest first, revoked ones too."""
    found = _keys_of(project_id, operators=operators)
    rows = await session.scalars(found.order_by(ApiKey.created_at.desc(), ApiKey.id.desc()))
    return rows.all()


async def lock_admin_keys(session: AsyncSession, project_id: str) -> dict[str, str]:
    """The project's live keys that administer it, by id with their role, locked: of two that revoke each other, one stays."""
    rows = await session.execute(
        sa.select(ApiKey.id, ApiKey.role)
        .where(ApiKey.project_id == project_id, ApiKey.role.in_(["operator", "admin"]), ApiKey.revoked_at.is_(None))
        .order_by(ApiKey.id)
        .with_for_update()
    )
    return {row.id: row.role for row in rows}


async def revoke_key(session: AsyncSession, project_id: str, key_id: str, *, operators: bool) -> ApiKey | None:
    """Revoke it unless it is already; None when the project has no such key, or ``operators`` does not include it."""
    key = await session.scalar(_keys_of(project_id, operators=operators).where(ApiKey.id == key_id).with_for_update())
    if key is not None and key.revoked_at is None:
        key.revoked_at = now()
        await session.flush()
    return key


async def projects_of(session: AsyncSession, organization_id: str) -> Sequence[Project]:
    """Oldest first."""
    rows = await session.scalars(
        sa.select(Project).where(Project.organization_id == organization_id).order_by(Project.created_at, Project.id)
    )
    return rows.all()


async def project(session: AsyncSession, organization_id: str, project_id: str) -> Project | None:
    return await session.scalar(
        sa.select(Project).where(Project.id == project_id, Project.organization_id == organization_id)
    )
