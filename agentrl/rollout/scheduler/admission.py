"""Number of starts a version admits without becoming too stale to train on (AReaL)."""


def capacity(
    *,
    version: int,
    max_staleness: int,
    batch: int,
    accepted: int,
    running: int,
    max_concurrent: int | None = None,
) -> int:
    """Return the number that may be submitted now; negative when the bound has been overdrawn.

    `batch` is what one version consumes, in the unit of the counts (groups or trajectories).
    `accepted` counts everything ever accepted, consumed or not, and `running` what is in flight;
    what was rejected is in neither, so it is refilled. A run that is resumed at version i starts
    with `accepted = i * batch`.

    What it guarantees: consumed first in, first out, something started now is consumed at a
    version of at most `version + max_staleness`. It bounds the start, not the age of a token.
    """
    allowed = (max_staleness + version + 1) * batch - (accepted + running)
    return allowed if max_concurrent is None else min(allowed, max_concurrent - running)
