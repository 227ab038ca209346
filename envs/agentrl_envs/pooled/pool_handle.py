"""Whose the pool is that an environment plays in: its own, its scope's, or the caller's."""

from collections.abc import Awaitable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from agentrl.authoring.setting_kinds import read_settings
from agentrl.runtime.scope import shared


class PoolSettings(Hashable, Protocol):
    """Settings of a pool; a dataclass whose fields have defaults."""

    @property
    def open_s(self) -> float:
        """For what is dear to start, and for a place to come free."""
        ...


S = TypeVar("S", bound=PoolSettings)


class ResourcePool(Protocol[S]):
    """Something dear that episodes share."""

    settings: S

    @classmethod
    def open(cls, settings: S) -> Awaitable[Self]:
        """Return a pool in which nothing dear runs yet."""
        ...

    async def close(self) -> None:
        """End everything. Idempotent."""
        ...


P = TypeVar("P", bound=ResourcePool[Any])


@dataclass(frozen=True, slots=True)
class PoolKind(Generic[P, S]):
    """A kind of pool, as a config gives it."""

    name: str
    """Of the settings in a config."""
    pool: type[P]
    settings: type[S]

    def settings_of(self, given: S | Mapping[str, Any] | None) -> S:
        """Return settings from their fields. Raises `ConfigError` for one that there is not."""
        return read_settings(self.settings, given, of=self.name)


class PoolHandle(Generic[P, S]):
    """An environment's pool, from the first time that it is needed."""

    def __init__(self, pools: PoolKind[P, S], given: P | S | Mapping[str, Any] | None) -> None:
        """Take a pool, which stays the caller's, or settings of one. Acquire nothing."""
        self._pools = pools
        self._pool: P | None = given if isinstance(given, pools.pool) else None
        self._is_given = self._pool is not None
        self._is_own = False
        rest = cast("S | Mapping[str, Any] | None", given)
        self.settings: S = self._pool.settings if self._pool else pools.settings_of(rest)

    @property
    def now(self) -> P | None:
        """Return the pool, if it was needed already."""
        return self._pool

    async def get(self) -> P:
        """Return the pool of the current scope, of the caller, or one of its own, open_pool now."""
        if self._pool is None:
            pools, settings = self._pools, self.settings

            async def open_pool() -> P:
                return await pools.pool.open(settings)

            shared_pool = await shared((pools.name, settings), open_pool)
            self._pool, self._is_own = (
                (await open_pool(), True) if shared_pool is None else (shared_pool, False)
            )
        return self._pool

    def another(self) -> "PoolHandle[P, S]":
        """Return that of a fork, which closes nothing of this one's."""
        pool = None if self._is_own else self._pool
        handle = PoolHandle[P, S](self._pools, self.settings)
        handle._pool, handle._is_given = pool, self._is_given
        return handle

    async def close(self) -> None:
        """Close the pool if it is the environment's own. Idempotent."""
        if self._is_given:
            return
        pool, self._pool = self._pool, None
        if pool is not None and self._is_own:
            await pool.close()
