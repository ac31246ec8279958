"""What is sold, for how much, and at which rate of value added tax."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from billing.money import parse_amount


@dataclass(frozen=True)
class Product:
    sku: str
    name: str
    price: int
    vat_percent: int


class Catalogue:
    """Products by their number (SKU)."""

    def __init__(self, products: list[Product]) -> None:
        self._products = {product.sku: product for product in products}

    @classmethod
    def load(cls, path: str | Path) -> Catalogue:
        """Read a JSON list of {"sku", "name", "price": "12.50", "vat_percent"}."""
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(
            [
                Product(entry["sku"], entry["name"], parse_amount(entry["price"]), entry["vat_percent"])
                for entry in entries
            ]
        )

    def __getitem__(self, sku: str) -> Product:
        try:
            return self._products[sku]
        except KeyError:
            raise KeyError(f"no product has the number {sku!r}") from None

    def __len__(self) -> int:
        return len(self._products)
