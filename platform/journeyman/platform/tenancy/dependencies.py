"""Dependencies of endpoints: who is asking."""

from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from journeyman.platform.http.dependencies import DatabaseDep
from journeyman.platform.kit.errors import Forbidden, Unauthorized
from journeyman.platform.tenancy import service
from journeyman.platform.tenancy.service import Principal

_bearer = HTTPBearer(auto_error=False, description="An API key: `jm_…`")

BearerDep = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def get_principal(database: DatabaseDep, credentials: BearerDep) -> Principal:
    """Whose key it is. Raises :class:`Unauthorized`."""
    if credentials is None or not credentials.credentials:
        raise Unauthorized("This address needs a key: send the header `Authorization: Bearer jm_…`.")
    # A transaction of its own, closed at once: an event stream must not sit on the one that let it in.
    async with database.transaction() as session:
        return await service.authenticate(session, credentials.credentials)


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
