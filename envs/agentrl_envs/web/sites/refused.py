"""Refusal of a site to do what it was asked for."""


class SiteRefusal(Exception):
    """Nothing was changed; the text is for whoever asked."""
