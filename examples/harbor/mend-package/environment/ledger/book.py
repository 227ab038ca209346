"""Amounts and their sums."""


def parse_cents(text: str) -> int:
    """Return an amount such as `12.50`, `3` or `-0.5` in cents."""
    whole, _, part = text.partition(".")
    return int(whole) * 100 + int(part or 0)


def balance(rows: list[tuple[str, str]]) -> dict[str, int]:
    """Return the sum in cents of each account, for rows of account and amount."""
    sums: dict[str, int] = {}
    for account, amount in rows:
        sums[account] = parse_cents(amount)
    return sums
