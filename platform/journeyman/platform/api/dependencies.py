"""What endpoints ask for: resources, the request's transaction, and who is asking."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.api.resources import Resources
from journeyman.platform.kit.errors import Forbidden, Unauthorized
from journeyman.platform.tenancy import service as tenancy
from journeyman.platform.tenancy.service import Principal

_bearer = HTTPBearer(auto_error=False, description="An API key: `jm_…`")


def get_resources(request: Request) -> Resources:
    """What the process has."""
    resources: Resources = request.app.state.resources
    return resources


ResourcesDep = Annotated[Resources, Depends(get_resources)]


async def get_session(resources: ResourcesDep) -> AsyncIterator[AsyncSession]:
    """See :data:`SessionDep`."""
    async with resources.database.transaction() as session:
        yield session


SessionDep = Annotated[AsyncSession, Depends(get_session, scope="function")]
"""The request's one transaction: committed before the answer is sent, rolled back when the endpoint raises."""

BearerDep = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def get_principal(resources: ResourcesDep, credentials: BearerDep) -> Principal:
    """Whose key it is. Raises :class:`Unauthorized`."""
    if credentials is None or not credentials.credentials:
        raise Unauthorized("This address needs a key: send the header `Authorization: Bearer jm_…`.")
    # A transaction of its own, closed at once: an event stream must not sit on the one that let it in.
    async with resources.database.transaction() as session:
        return await tenancy.authenticate(session, credentials.credentials)


PrincipalDep = Annotated[Principal, Depends(get_principal)]


def get_admin(principal: PrincipalDep) -> Principal:
    """Return the principal of a key that administers its project. Raises :class:`Forbidden` for another key."""
    if not principal.is_admin:
        raise Forbidden("This needs an admin key; the one you sent belongs to a member.", code="admin_required")
    return principal


AdminDep = Annotated[Principal, Depends(get_admin)]


def get_operator(principal: PrincipalDep) -> Principal:
    """Return the principal of an operator key. Raises :class:`Forbidden` for a project's own key."""
    if not principal.is_operator:
        raise Forbidden(
            "This needs the operator's key, as it is in admin.key of the data directory; the one you sent belongs to one "
            "project. If it is lost: python -m journeyman.platform.tenancy new-admin-key",
            code="operator_required",
        )
    return principal


OperatorDep = Annotated[Principal, Depends(get_operator)]


IdempotencyKeyDep = Annotated[
    str | None,
    Header(alias="Idempotency-Key", description="Sent twice under the same key, it is done once and answered alike."),
]

REPLAYED: Final[dict[str, Any]] = {
    "Idempotent-Replay": {"schema": {"type": "string"}, "description": "`true` for what was done before under the key."}
}
"""For the description of an answer that :func:`mark_replayed` may have marked."""


def mark_replayed(response: Response) -> None:
    """Say that the answer is that of an earlier request under the same key."""
    response.headers["Idempotent-Replay"] = "true"
