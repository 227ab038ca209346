"""An environment around another: what it does not do itself, the inner one does."""

from collections.abc import Mapping
from typing import Any, Self

from agentrl.env import Action, Env, ForkStrategy, Info, Observation, Step, looks_ahead


def swap_worlds(env: Env, other: Env) -> Env:
    """Put the inmost world of `other` in the place of that of `env`, and return the latter.

    Both are wrapped. Whoever holds `env` has the other world then.
    """
    outer = inmost(env)
    before, outer.inner = outer.inner, inmost(other).inner
    return before


def inmost(env: Env) -> "EnvWrapper":
    """Return the wrapper that has a world and no other wrapper inside."""
    if not isinstance(env, EnvWrapper):
        raise TypeError(f"a {type(env).__name__} wraps nothing")
    while isinstance(env.inner, EnvWrapper):
        env = env.inner
    return env


class EnvWrapper:
    """Passes everything on. A subclass says in `around` how it wraps a copy of the inner world."""

    def __init__(self, inner: Env) -> None:
        self.inner = inner
        self.fork_strategy: ForkStrategy = inner.fork_strategy
        self.looks_ahead = looks_ahead(inner)

    def around(self, inner: Env) -> Self:
        """Return a wrapper like this one around another environment."""
        return type(self)(inner)

    def tasks(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.tasks(*args, **kwargs)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        return await self.inner.reset(seed=seed, options=options)

    async def step(self, action: Action) -> Step:
        return await self.inner.step(action)

    async def fork(self) -> Self:
        return self.around(await self.inner.fork())

    async def close(self) -> None:
        await self.inner.close()
