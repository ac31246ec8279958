"""Limits and what is used of them, in words."""

import math
from typing import Any, Final

from journeyman.apps.cli.text import counted, duration, money, number

NAMES: Final = {"max_tokens": "tokens", "max_cost_usd": "dollars", "max_wall_s": "time", "max_steps": "steps"}

OPTIONS: Final = {"max_tokens": "tokens", "max_cost_usd": "cost", "max_wall_s": "time", "max_steps": "steps"}
"""How options call a limit: ``--budget-tokens`` of a task, ``--tokens`` of a project."""


def amount(name: str, value: float) -> str:
    """Of the limit of that name, without its unit where that is a count."""
    if name == "max_cost_usd":
        return money(value)
    return duration(value) if name == "max_wall_s" else number(int(value))


def used(name: str, spent: float, of: float) -> str:
    """``3 of 5 steps``, ``$1.20 of $1.00``, ``59 s of 1 min 00 s``."""
    unit = "" if name in {"max_cost_usd", "max_wall_s"} else f" {NAMES[name] if of != 1 else NAMES[name][:-1]}"
    return f"{amount(name, spent)} of {amount(name, of)}{unit}"


def more(name: str, at_least: float) -> str:
    """A limit that leaves as much again as is used, as its option takes it: ``6``, ``250000``, ``0.5``, ``90m``."""
    wanted = max(at_least, 0) * 2
    match name:
        case "max_cost_usd":
            return f"{max(_rounded_up(wanted * 10_000) / 10_000, 0.01):g}"
        case "max_wall_s":
            seconds = max(1, math.ceil(wanted))
            return f"{seconds}s" if seconds < 120 else f"{math.ceil(seconds / 60)}m"
        case _:
            return str(max(1, _rounded_up(wanted)))


def _rounded_up(value: float) -> int:
    """To two digits that count."""
    whole = math.ceil(value)
    step = int(10 ** max(0, len(str(whole)) - 2))
    return -(-whole // step) * step


def spent_in_words(spent: dict[str, Any]) -> str:
    """Of an amount ``{tokens, cost_usd, steps, wall_s}``."""
    return ", ".join(
        (
            counted_tokens(int(spent.get("tokens") or 0)),
            money(spent.get("cost_usd") or "0"),
            counted(int(spent.get("steps") or 0), "step"),
            f"{duration(float(spent.get('wall_s') or 0))} of work",
        )
    )


def counted_tokens(count: int) -> str:
    return counted(count, "token", shown=number(count))
