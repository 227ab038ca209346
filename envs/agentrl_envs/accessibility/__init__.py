"""Accessibility trees of pages, as observations show them."""
