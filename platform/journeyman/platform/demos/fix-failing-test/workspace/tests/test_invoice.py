import unittest

from billing import Catalogue, Product, build_invoice

CATALOGUE = Catalogue(
    [
        Product("A", "Toner", 61_35, 19),
        Product("B", "Paper", 4_79, 19),
        Product("C", "Magazine", 7_33, 7),
    ]
)


def invoice(**quantities):
    items = [{"sku": sku, "quantity": quantity} for sku, quantity in quantities.items()]
    return build_invoice({"number": "T-1", "items": items}, CATALOGUE)


class InvoiceTest(unittest.TestCase):
    def test_small_order_without_discount(self):
        made = invoice(B=2, C=1)
        self.assertEqual(made.subtotal, 16_91)
        self.assertEqual(made.discount, 0)
        self.assertEqual(made.vat_by_rate, {7: 51, 19: 1_82})
        self.assertEqual(made.total, 19_24)

    def test_the_discount_is_spread_over_the_lines_to_the_cent(self):
        made = invoice(A=1, B=10, C=4)
        self.assertEqual(made.discount, 6_93)
        self.assertEqual(sum(line.discount for line in made.lines), made.discount)

    def test_the_total_is_what_the_lines_say(self):
        made = invoice(A=1, B=10, C=4)
        nets = sum(line.net for line in made.lines)
        self.assertEqual(made.total, nets + sum(made.vat_by_rate.values()))

    def test_an_order_without_items_is_refused(self):
        with self.assertRaises(ValueError):
            build_invoice({"number": "T-2", "items": []}, CATALOGUE)

    def test_an_unknown_product_is_named(self):
        with self.assertRaisesRegex(KeyError, "'X'"):
            invoice(X=1)


if __name__ == "__main__":
    unittest.main()
