"""Arithmetic with amounts of money, which are integers in cents everywhere."""

from __future__ import annotations

from typing import Sequence


def parse_amount(text: str) -> int:
    """Cents from a decimal text such as "12.50", "7" or "-0.99"."""
    sign = -1 if text.startswith("-") else 1
    whole, _, fraction = text.lstrip("+-").partition(".")
    if not whole.isdigit() or len(fraction) > 2 or (fraction and not fraction.isdigit()):
        raise ValueError(f"not an amount: {text!r}")
    return sign * (int(whole) * 100 + int(fraction.ljust(2, "0") or "0"))


def format_amount(cents: int) -> str:
    """The inverse of parse_amount, always with two decimals."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def percentage(amount: int, percent: int) -> int:
    """So many percent of an amount, rounded half up to a whole cent."""
    return (amount * percent + 50) // 100


def allocate(amount: int, weights: Sequence[int]) -> list[int]:
    """Split an amount in proportion to the weights, in whole cents."""
    total = sum(weights)
    return [round(amount * weight / total) for weight in weights]
