import unittest

from billing.money import allocate, format_amount, parse_amount, percentage


class AmountTest(unittest.TestCase):
    def test_texts_become_cents_and_back(self):
        for text, cents in (("12.50", 1250), ("7.00", 700), ("-0.99", -99), ("0.05", 5)):
            self.assertEqual(parse_amount(text), cents)
            self.assertEqual(format_amount(cents), text)
        self.assertEqual(parse_amount("7"), 700)
        self.assertEqual(parse_amount("7.5"), 750)

    def test_what_is_no_amount_is_refused(self):
        for text in ("", "1,50", "1.234", "abc", "1.x"):
            with self.assertRaises(ValueError, msg=text):
                parse_amount(text)

    def test_percentages_are_rounded_half_up(self):
        self.assertEqual(percentage(50, 19), 10)  # 9.5
        self.assertEqual(percentage(150, 7), 11)  # 10.5
        self.assertEqual(percentage(100, 7), 7)


class AllocateTest(unittest.TestCase):
    def test_even_split(self):
        self.assertEqual(allocate(900, [1, 1, 1]), [300, 300, 300])

    def test_split_in_proportion(self):
        self.assertEqual(allocate(1000, [50, 30, 20]), [500, 300, 200])

    def test_equal_weights_differ_by_at_most_one_cent(self):
        parts = allocate(1000, [1] * 7)
        self.assertLessEqual(max(parts) - min(parts), 1)


if __name__ == "__main__":
    unittest.main()
