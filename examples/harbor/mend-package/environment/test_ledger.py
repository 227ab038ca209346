"""Checks of the ledger; `python3 test_ledger.py` runs them."""

from ledger import balance, parse_cents

AMOUNTS = {"12.50": 1250, "0.5": 50, "-0.50": -50}
SUMS = balance([("a", "1"), ("b", "2.05"), ("a", "0.10")])

if __name__ == "__main__":
    for text, cents in AMOUNTS.items():
        assert parse_cents(text) == cents, text
    assert SUMS == {"a": 110, "b": 205}, SUMS
