"""A ledger of amounts in cents."""

from ledger.book import balance, parse_cents

__all__ = ["balance", "parse_cents"]
