from decimal import Decimal

import pytest
from pydantic import ValidationError

from journeyman.agents.budget import Limits


def test_what_is_not_a_limit_is_refused():
    with pytest.raises(ValidationError):
        Limits(tokens=-1)
    with pytest.raises(ValidationError):
        Limits.model_validate({"dollars": 1})


def test_limits_in_words():
    text = Limits(tokens=2_000_000, cost_usd=Decimal("4.5"), wall_time_s=3600, steps=0).described()
    assert text == "2,000,000 tokens, 4.50 US dollars, 3,600 s, 0 steps"
    assert Limits().described() == ""
