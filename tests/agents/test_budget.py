import random
from decimal import Decimal

import pytest
from pydantic import ValidationError

from journeyman.agents.budget import Dimension, Limits, Spent, Warned


def test_a_limit_is_reached_when_it_allows_nothing_more():
    limits = Limits(tokens=100, cost_usd=Decimal("0.30"), steps=0)
    assert limits.reached(Spent()) == [Dimension.STEPS]
    assert limits.reached(Spent(tokens=100)) == [Dimension.TOKENS, Dimension.STEPS]
    assert Dimension.COST in limits.reached(Spent(cost_usd=Decimal("0.10") * 3))


def test_no_limits_never_end():
    assert Limits().reached(Spent(tokens=10**12)) == Limits().near(Spent(steps=10**9)) == []
    assert Limits().described() == ""


def test_warnings_come_at_eighty_percent_once_and_again_after_a_raise():
    warned, limits = Warned(), Limits(tokens=100)
    due, warned = warned.due(limits, Spent(tokens=79))
    assert due == []
    due, warned = warned.due(limits, Spent(tokens=80))
    assert due == [Dimension.TOKENS]
    due, warned = Warned.model_validate_json(warned.model_dump_json()).due(limits, Spent(tokens=99))
    assert due == []
    due, warned = warned.due(Limits(tokens=200), Spent(tokens=120))
    assert due == []
    due, warned = warned.due(Limits(tokens=200), Spent(tokens=160))
    assert due == [Dimension.TOKENS]


def test_random_arithmetic_agrees():
    rng = random.Random(11)
    for _ in range(300):
        limits = Limits(tokens=rng.choice([None, rng.randrange(50)]), cost_usd=Decimal(rng.randrange(50)) / 7)
        spent = Spent(tokens=rng.randrange(50), cost_usd=Decimal(rng.randrange(50)) / 7)
        assert set(limits.reached(spent)) <= set(limits.near(spent)) | {Dimension.TOKENS, Dimension.COST}
        part = Limits(tokens=rng.randrange(50)).within(limits)
        assert part.tokens is not None
        assert limits.tokens is None or part.tokens <= limits.tokens
        assert part.cost_usd == limits.cost_usd


def test_what_is_not_a_limit_is_refused():
    with pytest.raises(ValidationError):
        Limits(tokens=-1)
    with pytest.raises(ValidationError):
        Limits.model_validate({"dollars": 1})


def test_limits_in_words():
    text = Limits(tokens=2_000_000, cost_usd=Decimal("4.5"), wall_time_s=3600, steps=0).described()
    assert text == "2,000,000 tokens, 4.50 US dollars, 3,600 s, 0 steps"
