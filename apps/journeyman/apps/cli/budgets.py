"""``usage`` and ``budget``: what was spent, of how much, and how much it may be."""

import sys
from typing import Any

from journeyman.apps.cli.amounts import NAMES, amount, counted_tokens
from journeyman.apps.cli.client import Api
from journeyman.apps.cli.session import Target, connected, print_json, print_table, warn
from journeyman.apps.cli.text import counted, duration, money, number, one_line, parse_duration
from journeyman.apps.cli.view import Json
from journeyman.apps.exits import CommandError, Exit


def usage(target: Target, task_id: str | None, *, as_json: bool) -> Exit:
    """What a task, or the whole project, has used: by model, and against its limits."""
    with connected(target) as api:
        found = api.of_task(task_id, "usage") if task_id is not None else api.get("/v1/usage")
        if as_json:
            print_json(found)
            return Exit.OK
        rows = [
            (
                one_line(str(each["model"]), 60),
                str(each["calls"]),
                number(int(each["prompt_tokens"])),
                number(int(each["cached_tokens"])),
                number(int(each["completion_tokens"])),
                money(each["cost_usd"]) if each["price_known"] else "no price",
            )
            for each in found["models"]
        ]
        print_table(("model", "calls", "prompt", "of it cached", "answers", "cost"), rows)
        print(f"{counted_tokens(int(found['tokens']))}, {money(found['cost_usd'])}, "
              f"{duration(float(found['sandbox_seconds']))} of sandboxes")  # fmt: skip
        if not found["price_known"]:
            print("Models without a price count as free; see JOURNEYMAN_MODEL_PRICES.", file=sys.stderr)
        unknown = found["ambiguous"]
        if unknown["calls"]:
            print(f"A crash hid the bill of {counted(unknown['calls'], 'more call')}.", file=sys.stderr)
        _print_budgets(found["budgets"])
    return Exit.OK


def budget(target: Target, task_id: str | None, project_id: str | None, changes: Json, *, as_json: bool) -> Exit:
    """Show a budget, after changing it if ``changes`` names limits. Without a task it is the project's."""
    with connected(target) as api:
        if task_id is not None and project_id is not None:
            raise CommandError("Name a task or a project, not both.", Exit.USAGE)
        if task_id is not None:
            if "period" in changes:
                raise CommandError("Only a project's budget has a period.", Exit.USAGE)
            if changes:
                warn(api.change_budget(task_id, changes))
            found = [each for each in api.of_task(task_id, "usage")["budgets"] if each["level"] == "task"]
        else:
            found = [_of_project(api, project_id, changes)]
            warn(found[0])
        if as_json:
            print_json(found[0])
        else:
            _print_budgets(found)
            if found[0].get("resumed"):
                print(f"{counted(found[0]['resumed'], 'task')} can go on.", file=sys.stderr)
    return Exit.OK


def limits(
    tokens: str | None, cost: str | None, time: str | None, steps: str | None, period: str | None
) -> dict[str, Any]:
    """Options as the API's limits; ``none`` takes one away."""
    changes: dict[str, Any] = {}
    for name, value, kind in (
        ("max_tokens", tokens, int),
        ("max_cost_usd", cost, float),
        ("max_wall_s", time, _seconds),
        ("max_steps", steps, int),
    ):
        if value is None:
            continue
        try:
            changes[name] = None if value.lower() == "none" else kind(value)
        except ValueError:
            raise CommandError(f"{value!r} is no limit of {NAMES[name]}: a number, or none.", Exit.USAGE) from None
    if period is not None:
        changes["period"] = period
    return changes


def _of_project(api: Api, project_id: str | None, changes: Json) -> Json:
    project_id = project_id or str(api.get("/v1/me")["project"]["id"])
    path = f"/v1/projects/{api.segment(project_id)}/budget"
    found: Json = api.request("PATCH", path, json=changes, repeatable=True).json() if changes else api.get(path)
    return found


def _print_budgets(budgets: list[Json]) -> None:
    rows = []
    for each in budgets:
        period = "" if each["period"] == "total" else f" ({each['period']})"
        for name, words in NAMES.items():
            view = each[name]
            share = view["share"]
            rows.append(
                (
                    f"{each['level']}{period}",
                    words,
                    amount(name, view["spent"]),
                    amount(name, view["reserved"]) if view["reserved"] else "",
                    "no limit" if view["limit"] is None else amount(name, view["limit"]),
                    "" if share is None else f"{share:.0%}",
                )
            )
    print_table(("budget", "of", "spent", "in flight", "limit", "used"), rows)


def _seconds(value: str) -> int:
    return int(parse_duration(value))
