"""Refusal of a site to do what it was asked for."""


class Refused(Exception):
    """Nothing was changed; the text is for whoever asked."""
