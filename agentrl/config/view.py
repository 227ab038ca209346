"""Config of what is kept for the viewer, and of what it hides."""

import re

from pydantic import Field, field_validator

from agentrl.config.section import ConfigSection


class ViewSection(ConfigSection):
    """Data that a run records for `agentrl view`."""

    record: bool = True
    """Keep what every step made of every token: advantage, ratio, entropy. Needs `store`."""
    record_bytes: int = Field(default=64 * 2**20, ge=0)
    """Most of that on disk; then the oldest steps go."""
    redact: tuple[str, ...] = ()
    """Regular expressions; what matches is hidden, beside the values of environment variables that
    look like keys."""

    @field_validator("redact")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                match = re.compile(pattern).match("")
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
            if match is not None:
                raise ValueError(f"{pattern!r} matches nothing at all, so everywhere; narrow it")
        return patterns
