from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from journeyman.platform.budgets.schemas import BudgetView
from journeyman.platform.ledger.limits import (
    EPOCH,
    LIMITS,
    WARN_SHARE,
    Standing,
    number,
    period_end,
    period_start,
)


def standing(budget, **spent):
    return Standing("project", "p", budget, {name: Decimal(spent.get(name, 0)) for name in LIMITS})


def test_a_limit_is_used_up_when_it_allows_nothing_more():
    limits = {"max_tokens": 100, "max_cost_usd": 0.3, "max_steps": 1}
    assert [each["limit"] for each in standing(limits, max_tokens=100, max_cost_usd="0.29").used()] == ["max_tokens"]
    # Sums of thousands of small amounts must equal the limit, and not be a hair below it.
    assert [each["limit"] for each in standing(limits, max_cost_usd=Decimal("0.10") * 3).used()] == ["max_cost_usd"]
    assert list(standing({}, max_tokens=10**15).used()) == []


def test_warnings_are_due_at_eighty_percent():
    assert list(standing({"max_tokens": 100}, max_tokens=79).used(WARN_SHARE)) == []
    assert list(standing({"max_tokens": 100, "period": "day"}, max_tokens=80).used(WARN_SHARE)) == [
        {"level": "project", "limit": "max_tokens", "spent": 80, "of": 100, "period": "day", "since": "1970-01-01"}
    ]


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("day", date(2024, 2, 29), datetime(2024, 3, 1, tzinfo=UTC)),
        ("month", date(2024, 2, 1), datetime(2024, 3, 1, tzinfo=UTC)),
        ("total", EPOCH, None),
    ],
)
def test_periods(period, start, end):
    assert period_start(period, date(2024, 2, 29)) == start
    assert period_end(period, start) == end


def test_december_ends_with_the_year():
    assert period_end("month", date(2024, 12, 1)) == datetime(2025, 1, 1, tzinfo=UTC)


def test_the_view_counts_reservations_in_the_share():
    at = Standing(
        "project", "p", {"max_tokens": 100, "period": "month"}, {name: Decimal(20) for name in LIMITS},
        {"max_tokens": Decimal(30)}, date(2026, 11, 1),
    )  # fmt: skip
    view = BudgetView.of(at)
    assert (view.max_tokens.limit, view.max_tokens.reserved, view.max_tokens.share) == (100, 30, 0.5)
    assert (view.max_steps.limit, view.max_steps.share) == (None, None)
    assert (view.since, view.resets_at) == (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))


def test_numbers_stay_exact_where_they_can():
    assert (number(Decimal(10**15)), number(Decimal("0.25"))) == (10**15, 0.25)
