import unittest

from ledger import balance, parse_cents


class LedgerTest(unittest.TestCase):
    def test_cents(self):
        self.assertEqual(parse_cents("12.50"), 1250)
        self.assertEqual(parse_cents("0.5"), 50)
        self.assertEqual(parse_cents("-0.50"), -50)

    def test_sums(self):
        self.assertEqual(balance([("a", "1"), ("b", "2.05"), ("a", "0.10")]), {"a": 110, "b": 205})
