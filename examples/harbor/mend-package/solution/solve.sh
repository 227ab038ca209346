#!/bin/bash -e
cat >/app/ledger/book.py <<'PYTHON'
"""Amounts and their sums."""


def parse_cents(text: str) -> int:
    """Return an amount such as `12.50`, `3` or `-0.5` in cents."""
    whole, _, part = text.lstrip("-").partition(".")
    cents = int(whole) * 100 + int(part.ljust(2, "0") or 0)
    return -cents if text.startswith("-") else cents


def balance(rows: list[tuple[str, str]]) -> dict[str, int]:
    """Return the sum in cents of each account, for rows of account and amount."""
    sums: dict[str, int] = {}
    for account, amount in rows:
        sums[account] = sums.get(account, 0) + parse_cents(amount)
    return sums
PYTHON
python3 /app/test_ledger.py
