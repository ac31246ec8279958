from sqlalchemy import text

from journeyman.platform.kit.database import Database
from journeyman.platform.kit.metrics import EVENTS_APPENDED, REGISTRY, count_after_commit


def counted(kind: str) -> float:
    return REGISTRY.get_sample_value("journeyman_events_appended_total", {"type": kind}) or 0.0


async def test_only_what_is_committed_counts(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(text("select 1"))
        for _ in range(2):
            count_after_commit(session, EVENTS_APPENDED, "kept")
        assert counted("kept") == 0
    assert counted("kept") == 2
    try:
        async with database.transaction() as session:
            await session.execute(text("select 1"))
            count_after_commit(session, EVENTS_APPENDED, "lost")
            raise RuntimeError
    except RuntimeError:
        pass
    assert counted("lost") == 0
