import json
import unittest
from pathlib import Path

from billing import Catalogue, Ledger, build_invoice

DATA = Path(__file__).parent.parent / "data"


class LedgerTest(unittest.TestCase):
    def setUp(self):
        self.catalogue = Catalogue.load(DATA / "catalogue.json")
        self.orders = json.loads((DATA / "orders.json").read_text(encoding="utf-8"))

    def test_one_small_order_balances(self):
        ledger = Ledger()
        ledger.post_invoice(build_invoice(self.orders[0], self.catalogue))
        self.assertEqual(ledger.imbalance, 0)
        self.assertEqual(ledger.accounts["receivables"], 49_68)

    def test_a_month_of_orders_balances(self):
        ledger = Ledger()
        for order in self.orders:
            ledger.post_invoice(build_invoice(order, self.catalogue))
        self.assertEqual(ledger.imbalance, 0)


if __name__ == "__main__":
    unittest.main()
