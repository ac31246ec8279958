"""Dependencies of endpoints: the process's resources by their type, and the request's transaction."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, TypeVar, cast

from fastapi import Depends, Header, Request, Response
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.kit.database import Database
from journeyman.platform.kit.settings import Settings

T = TypeVar("T")


class Resources:
    """What the process built in its lifespan, one object for each type."""

    def __init__(self) -> None:
        self._objects: dict[type[Any], Any] = {}

    def add(self, kind: type[T], resource: T) -> T:
        """Provide ``resource`` as the process's only ``kind``, and return it."""
        self._objects[kind] = resource
        return resource

    def __getitem__(self, kind: type[T]) -> T:
        return cast("T", self._objects[kind])


def resource(kind: type[T]) -> Callable[[Request], T]:
    """A dependency that gives the process's object of this type. Each slice declares the ones that its endpoints use."""

    def of_process(request: Request) -> T:
        resources: Resources = request.app.state.resources
        return resources[kind]

    return of_process


DatabaseDep = Annotated[Database, Depends(resource(Database))]
SettingsDep = Annotated[Settings, Depends(resource(Settings))]


async def get_session(database: DatabaseDep) -> AsyncIterator[AsyncSession]:
    """See :data:`SessionDep`."""
    async with database.transaction() as session:
        yield session


SessionDep = Annotated[AsyncSession, Depends(get_session, scope="function")]
"""The request's one transaction: committed before the answer is sent, rolled back when the endpoint raises."""

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
