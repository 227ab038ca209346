"""GEM: `gem.make(id)`, one environment per episode."""

# The library is in another venv, so a type checker cannot see it from here.
# pyright: basic, reportMissingImports=false

import importlib

NEEDS = {"gem-llm": "0.0.4"}


def preload():
    """Import the library."""
    import gem  # noqa: F401


class GemEpisode:
    """One environment."""

    def __init__(self, params):
        import gem

        for name in params["imports"]:
            importlib.import_module(name)
        self.env = gem.make(params["id"], **params["kwargs"])

    def reset(self, seed):
        return self.render(*self.env.reset(seed=seed))

    def step(self, text):
        observation, reward, terminated, truncated, info = self.env.step(text)
        return {
            **self.render(observation, info),
            "reward": unwrap_scalar(reward),
            "terminated": unwrap_scalar(terminated),
            "truncated": unwrap_scalar(truncated),
        }

    def render(self, seen, info):
        """Return an observation with the suffix that GEM's wrappers put below it."""
        if not isinstance(seen, str):
            raise TypeError(
                f"the observation is a {type(seen).__name__}, but only text can be shown"
            )
        suffix = info.get("suffix") or ""
        return {"text": f"{seen}\n{suffix}" if suffix else seen}


def unwrap_scalar(value):
    """Return a scalar of NumPy or torch as Python's, and anything else as it is."""
    return value.item() if hasattr(value, "item") else value


EPISODE = GemEpisode
