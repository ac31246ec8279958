"""Discounts on whole orders: the more is ordered, the larger the share that is taken off."""

from __future__ import annotations

from billing.money import percentage

# Subtotal from which a discount applies, in cents, and its percentage. The highest that applies counts.
TIERS = ((1000_00, 12), (500_00, 10), (100_00, 5))


def order_discount(subtotal: int) -> int:
    """What is taken off an order with this subtotal, as a positive amount."""
    for threshold, percent in TIERS:
        if subtotal >= threshold:
            return percentage(subtotal, percent)
    return 0
