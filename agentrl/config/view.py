"""Config section of the data recorded for the viewer."""

import re

from pydantic import Field, field_validator

from agentrl.config.section import ConfigSection


class ViewSection(ConfigSection):
    """Data that a run records for `agentrl view`."""

    record: bool = True
    """Record the advantage, ratio, and entropy of each token in each step. Requires `store`."""
    record_bytes: int = Field(default=64 * 2**20, ge=0)
    """Maximum size of this record on disk; beyond it, the oldest steps are deleted."""
    redact: tuple[str, ...] = ()
    """Regular expressions of text to hide, in addition to the values of environment variables that
    look like keys."""

    @field_validator("redact")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                match = re.compile(pattern).match("")
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is not a valid regular expression: {error}"
                ) from error
            if match is not None:
                raise ValueError(
                    f"{pattern!r} matches the empty string, and therefore everywhere; make it more "
                    "specific"
                )
        return patterns
