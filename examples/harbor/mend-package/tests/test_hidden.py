import unittest

from ledger import balance, parse_cents


class HiddenTest(unittest.TestCase):
    def test_cents(self):
        wanted = {"7": 700, "7.1": 710, "7.01": 701, "-3": -300, "-3.25": -325, "-0.05": -5}
        self.assertEqual({text: parse_cents(text) for text in wanted}, wanted)

    def test_sums(self):
        rows = [("x", "0.5"), ("y", "-1"), ("x", "-0.25"), ("x", "2")]
        self.assertEqual(balance(rows), {"x": 225, "y": -100})
