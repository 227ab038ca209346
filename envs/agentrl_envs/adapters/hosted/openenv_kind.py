"""OpenEnv: a client of a running server, one connection, and so one session there, per episode."""

# The library is in another venv, so a type checker cannot see it from here.
# pyright: basic, reportMissingImports=false

import asyncio
import json

HIDDEN = ("done", "reward", "metadata")
"""Of an observation: what is no observation."""


def preload():
    """Import the library."""
    from openenv.core import GenericEnvClient  # noqa: F401


def ask(params):
    """Refuse: a server has no list of tasks."""
    raise ValueError(f"a server of OpenEnv answers episodes only, and was asked {params}")


class World:
    """One session of a server."""

    def __init__(self, params):
        from openenv.core import GenericEnvClient

        self.key = params["observation_key"]
        self.loop = asyncio.new_event_loop()
        # Deadlines are the asker's, who ends this process: the client's own would leave the answer
        # to a late step in the line, to be taken for the answer to the next one.
        self.client = GenericEnvClient(
            params["url"], connect_timeout_s=params["timeout_s"], message_timeout_s=10**9
        )
        self.loop.run_until_complete(self.client.connect())

    def reset(self, seed, options):
        """Begin an episode."""
        return self.shown(self.client.reset(seed=seed, **options))

    def step(self, action):
        """Do one action, an object."""
        return self.shown(self.client.step(action))

    def close(self):
        """Disconnect."""
        self.loop.run_until_complete(self.client.close())

    def shown(self, asked):
        """Return an observation as text, and what it pays."""
        result = self.loop.run_until_complete(asked)
        seen = result.observation
        if self.key:
            if self.key not in seen:
                raise KeyError(f"the observation has no {self.key!r}; it has {sorted(seen)}")
            seen = seen[self.key]
        elif isinstance(seen, dict):
            seen = {k: v for k, v in seen.items() if k not in HIDDEN}
        return {
            "text": seen if isinstance(seen, str) else json.dumps(seen, ensure_ascii=False),
            "reward": 0.0 if result.reward is None else float(result.reward),
            "terminated": bool(result.done),
            "truncated": False,
        }
