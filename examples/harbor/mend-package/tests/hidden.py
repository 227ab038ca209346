"""Checks of the ledger that nobody has seen."""

from ledger import balance, parse_cents

AMOUNTS = {"7": 700, "7.1": 710, "7.01": 701, "-3": -300, "-3.25": -325, "-0.05": -5}
ROWS = [("x", "0.5"), ("y", "-1"), ("x", "-0.25"), ("x", "2")]
assert {text: parse_cents(text) for text in AMOUNTS} == AMOUNTS
assert balance(ROWS) == {"x": 225, "y": -100}
