"""From an order to an invoice: lines, their part of the discount, and tax by rate."""

from __future__ import annotations

from dataclasses import dataclass

from billing.catalogue import Catalogue
from billing.discounts import order_discount
from billing.money import allocate, percentage


@dataclass(frozen=True)
class Line:
    """One position. ``amount`` is before, ``net`` after the line's part of the discount."""

    sku: str
    quantity: int
    amount: int
    discount: int
    vat_percent: int

    @property
    def net(self) -> int:
        return self.amount - self.discount


@dataclass(frozen=True)
class Invoice:
    number: str
    lines: tuple[Line, ...]
    subtotal: int
    discount: int

    @property
    def vat_by_rate(self) -> dict[int, int]:
        """Tax for each rate, rounded once for the sum of its lines, as the tax office wants it."""
        nets: dict[int, int] = {}
        for line in self.lines:
            nets[line.vat_percent] = nets.get(line.vat_percent, 0) + line.net
        return {rate: percentage(net, rate) for rate, net in sorted(nets.items())}

    @property
    def total(self) -> int:
        """What the customer pays."""
        return self.subtotal - self.discount + sum(self.vat_by_rate.values())


def build_invoice(order: dict, catalogue: Catalogue) -> Invoice:
    """Make the invoice for {"number", "items": [{"sku", "quantity"}]}."""
    if not order["items"]:
        raise ValueError(f"order {order['number']} has no items")
    items = [(catalogue[item["sku"]], item["quantity"]) for item in order["items"]]
    amounts = [product.price * quantity for product, quantity in items]
    subtotal = sum(amounts)
    discount = order_discount(subtotal)
    lines = tuple(
        Line(product.sku, quantity, amount, part, product.vat_percent)
        for (product, quantity), amount, part in zip(items, amounts, allocate(discount, amounts))
    )
    return Invoice(order["number"], lines, subtotal, discount)
