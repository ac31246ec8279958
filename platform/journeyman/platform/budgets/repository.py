"""SQL of budgets: how they stand, which tasks wait for them, which warnings were given."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from journeyman.platform.ledger.limits import Standing
from journeyman.platform.ledger.models import BudgetWarning
from journeyman.platform.tasks.contract import TERMINAL
from journeyman.platform.tasks.models import Task
from journeyman.platform.tenancy.models import Project

# One statement for both levels, because every step of every agent asks.
_STANDINGS: Final = sa.text(
    """
    SELECT 'task' AS level, task.id AS scope, task.budget, DATE 'epoch' AS since,
        coalesce(account.tokens, 0) + coalesce((task.inherited->>'tokens')::bigint, 0) AS tokens,
        coalesce(account.cost_usd, 0) + coalesce((task.inherited->>'cost_usd')::numeric, 0) AS cost_usd,
        coalesce(account.steps, 0) + coalesce((task.inherited->>'steps')::bigint, 0) AS steps,
        task.worked_s + coalesce((task.inherited->>'wall_s')::numeric, 0)
            + coalesce(extract(epoch FROM :moment - task.working_since), 0) AS wall_s,
        coalesce(account.reserved_tokens, 0) AS reserved_tokens,
        coalesce(account.reserved_cost_usd, 0) AS reserved_cost_usd
    FROM tasks AS task
        LEFT JOIN budget_accounts AS account ON account.scope = task.id AND account.day = DATE 'epoch'
    WHERE task.id = :task_id AND task.project_id = :project_id
    UNION ALL
    SELECT 'project', project.id, project.budget, period.since, sums.tokens, sums.cost_usd, sums.steps,
        sums.wall_s + coalesce((
            SELECT sum(extract(epoch FROM :moment - greatest(working_since, period.since AT TIME ZONE 'UTC')))
            FROM tasks WHERE project_id = project.id AND working_since IS NOT NULL
        ), 0), sums.reserved_tokens, sums.reserved_cost_usd
    FROM projects AS project,
        LATERAL (SELECT CASE project.budget->>'period'
            WHEN 'day' THEN (:moment AT TIME ZONE 'UTC')::date
            WHEN 'month' THEN date_trunc('month', :moment AT TIME ZONE 'UTC')::date
            ELSE DATE 'epoch' END AS since) AS period,
        LATERAL (SELECT coalesce(sum(tokens), 0) AS tokens, coalesce(sum(cost_usd), 0) AS cost_usd,
            coalesce(sum(steps), 0) AS steps, coalesce(sum(wall_s), 0) AS wall_s,
            coalesce(sum(reserved_tokens), 0) AS reserved_tokens,
            coalesce(sum(reserved_cost_usd), 0) AS reserved_cost_usd
            FROM budget_accounts WHERE scope = project.id AND day >= period.since) AS sums
    WHERE project.id = :project_id AND (:always OR project.budget ?| ARRAY[
        'max_tokens', 'max_cost_usd', 'max_wall_s', 'max_steps'])
    """
).bindparams(
    sa.bindparam("task_id", type_=sa.Text),
    sa.bindparam("project_id", type_=sa.Text),
    sa.bindparam("moment", type_=sa.DateTime(timezone=True)),
    sa.bindparam("always", type_=sa.Boolean),
)


async def standings(
    session: AsyncSession, project_id: str, task_id: str | None, moment: datetime, *, always: bool = False
) -> list[Standing]:
    """How the task and its project stand, in this order; a project without a limit only if ``always`` is asked for."""
    rows = await session.execute(
        _STANDINGS, {"project_id": project_id, "task_id": task_id, "moment": moment, "always": always}
    )
    return [
        Standing(
            level=row.level,
            scope=row.scope,
            budget=row.budget,
            spent={
                "max_tokens": Decimal(row.tokens),
                "max_cost_usd": Decimal(row.cost_usd),
                "max_wall_s": Decimal(row.wall_s),
                "max_steps": Decimal(row.steps),
            },
            reserved={"max_tokens": Decimal(row.reserved_tokens), "max_cost_usd": Decimal(row.reserved_cost_usd)},
            since=row.since,
        )
        for row in rows
    ]


async def first_warning(session: AsyncSession, scope: str, warning: str) -> bool:
    """Whether nobody has given this warning before; it counts as given once the transaction is committed."""
    given = await session.scalar(
        insert(BudgetWarning)
        .values(scope=scope, warning=warning)
        .on_conflict_do_nothing()
        .returning(BudgetWarning.scope)
    )
    return given is not None


async def lock_project(session: AsyncSession, project_id: str, *, shared: bool = False) -> Project | None:
    """The project's row, locked until the transaction ends. Comes before the lock of any of its tasks."""
    return await session.scalar(
        sa.select(Project)
        .where(Project.id == project_id)
        .with_for_update(read=shared, key_share=not shared)
        .execution_options(populate_existing=True)
    )


async def project_of(session: AsyncSession, task_id: str) -> str:
    return (await session.scalars(sa.select(Task.project_id).where(Task.id == task_id))).one()


async def waiting_for_project(session: AsyncSession, project_id: str) -> Sequence[str]:
    """Ids of the tasks that are paused at a limit of the project."""
    rows = await session.scalars(
        sa.select(Task.id)
        .where(
            Task.project_id == project_id,
            Task.paused_reason == "budget",
            Task.paused_detail["level"].astext == "project",
            Task.state.not_in([state.value for state in TERMINAL]),
        )
        .order_by(Task.id)
    )
    return rows.all()


async def projects_waited_for(session: AsyncSession) -> Sequence[str]:
    """Ids of the projects with a limit of a day or a month at which tasks are paused."""
    rows = await session.scalars(
        sa.select(Task.project_id)
        .where(
            Task.paused_reason == "budget",
            Task.paused_detail["level"].astext == "project",
            Task.paused_detail["period"].astext.in_(["day", "month"]),
        )
        .distinct()
    )
    return rows.all()
