"""The platform's checks of an edited plan and the Planner's rules say the same: neither layer may import the other."""

import random
from typing import Any

import pytest
from pydantic import ValidationError

from journeyman.agents import plans as rules
from journeyman.agents.tools import ParsedCall, parse_call
from journeyman.platform.approvals import plan_edits as editing
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.plans.schemas import MAX_COMMANDS, MAX_SUBTASKS

GOOD = {"id": "s1", "title": "One", "instructions": "Do it.", "depends_on": [], "acceptance": ["true"]}


def planner_takes(plan: dict[str, Any]) -> bool:
    return isinstance(parse_call("planner", "submit_plan", plan), ParsedCall)


def platform_takes(plan: dict[str, Any]) -> bool:
    try:
        return not editing.problems_of(editing.parse(plan, field="plan"))
    except InvalidInput:
        return False


def plan_of(*subtasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"subtasks": list(subtasks), **more}


def test_the_bounds_are_the_same() -> None:
    assert (MAX_SUBTASKS, MAX_COMMANDS) == (rules.MAX_SUBTASKS, rules.MAX_COMMANDS)


@pytest.mark.parametrize(
    ("plan", "good"),
    [
        (plan_of(GOOD), True),
        (plan_of({"id": "a", "title": "t", "instructions": "i"}), True),
        (plan_of(GOOD, acceptance=["make test"]), True),
        (plan_of(*({**GOOD, "id": f"s{n}"} for n in range(MAX_SUBTASKS))), True),
        (plan_of(*({**GOOD, "id": f"s{n}"} for n in range(MAX_SUBTASKS + 1))), False),
        (plan_of(), False),
        ({}, False),
        (plan_of(GOOD, acceptance=["true"] * (MAX_COMMANDS + 1)), False),
        (plan_of(GOOD, acceptance=["x" * 20_000]), True),
        (plan_of(GOOD, acceptance=["x" * 20_001]), False),
        (plan_of(GOOD, acceptance=["  "]), False),
        (plan_of(GOOD, other=1), False),
        (plan_of({**GOOD, "id": "x" * 40}), True),
        (plan_of({**GOOD, "id": "x" * 41}), False),
        (plan_of({**GOOD, "id": "Upper"}), False),
        (plan_of({**GOOD, "id": "a\n"}), False),
        (plan_of({**GOOD, "id": ""}), False),
        (plan_of({**GOOD, "title": " "}), False),
        (plan_of({**GOOD, "title": "x" * 200}), True),
        (plan_of({**GOOD, "title": "x" * 201}), False),
        (plan_of({**GOOD, "title": "a\nb"}), True),
        (plan_of({**GOOD, "instructions": "\n"}), False),
        (plan_of({**GOOD, "instructions": "x" * 50_001}), False),
        (plan_of({**GOOD, "instructions": "a\x00b"}), False),
        (plan_of({**GOOD, "instructions": "a\ud800b"}), False),
        (plan_of({**GOOD, "instructions": 5}), False),
        (plan_of({**GOOD, "depends_on": ["s1"]}), False),
        (plan_of({**GOOD, "depends_on": ["s2"]}), False),
        (plan_of({**GOOD, "depends_on": ["s2", "s2"]}, {**GOOD, "id": "s2"}), True),
        (plan_of({**GOOD, "depends_on": ["s2"]}, {**GOOD, "id": "s2", "depends_on": ["s1"]}), False),
        (plan_of(GOOD, GOOD), False),
        (plan_of({**GOOD, "extra": 1}), False),
    ],
)
def test_both_say_the_same(plan: dict[str, Any], *, good: bool) -> None:
    assert planner_takes(plan) == good
    assert platform_takes(plan) == good


def test_both_say_the_same_of_any_graph() -> None:
    chance = random.Random(11)
    verdicts = []
    for _ in range(400):
        size = chance.randint(1, 7)
        names = [f"s{chance.randint(0, 8)}" if chance.random() < 0.1 else f"s{n}" for n in range(size)]
        plan = plan_of(
            *(
                {**GOOD, "id": name, "depends_on": [f"s{chance.randint(0, size)}" for _ in range(chance.randint(0, 2))]}
                for name in names
            )
        )
        assert platform_takes(plan) == planner_takes(plan), plan
        verdicts.append(planner_takes(plan))
    assert 20 < sum(verdicts) < 380


def test_what_the_platform_stores_is_a_plan_to_the_agents() -> None:
    stored = editing.parse(plan_of({"id": "a", "title": "t", "instructions": "i"}), field="plan").model_dump(
        mode="json"
    )
    assert rules.validate_plan(rules.Plan.model_validate(stored)) == []
    with pytest.raises(ValidationError):
        rules.Plan.model_validate({**stored, "more": 1})
