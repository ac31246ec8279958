import unittest

from billing.discounts import order_discount


class OrderDiscountTest(unittest.TestCase):
    def test_small_orders_have_none(self):
        self.assertEqual(order_discount(0), 0)
        self.assertEqual(order_discount(99_99), 0)

    def test_each_tier_starts_at_its_threshold(self):
        self.assertEqual(order_discount(100_00), 5_00)
        self.assertEqual(order_discount(500_00), 50_00)
        self.assertEqual(order_discount(1000_00), 120_00)

    def test_the_discount_is_a_whole_number_of_cents(self):
        self.assertEqual(order_discount(123_45), 6_17)  # 6.1725


if __name__ == "__main__":
    unittest.main()
