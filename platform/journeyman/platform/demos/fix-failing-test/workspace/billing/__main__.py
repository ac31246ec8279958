"""Post a file of orders and print the trial balance."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from billing.catalogue import Catalogue
from billing.invoice import build_invoice
from billing.ledger import Ledger
from billing.money import format_amount


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python3 -m billing CATALOGUE.json ORDERS.json", file=sys.stderr)
        return 2
    catalogue = Catalogue.load(arguments[0])
    orders = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
    ledger = Ledger()
    for order in orders:
        ledger.post_invoice(build_invoice(order, catalogue))
    for account, balance in sorted(ledger.accounts.items()):
        print(f"{account:<16}{format_amount(balance):>12}")
    print(f"{len(orders)} orders, out of balance by {format_amount(ledger.imbalance)}")
    return 1 if ledger.imbalance else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
