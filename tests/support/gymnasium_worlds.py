"""Gymnasium environments for other interpreters, and the functions that tell and read them."""

# pyright: basic
import os
import signal
import tempfile
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Slot(gymnasium.Env):
    """A number to raise by what is said; it does whatever else it is told."""

    observation_space = spaces.Dict({"total": spaces.Box(-99, 99, (1,))})
    action_space = spaces.Box(-9, 9, (1,))

    def __init__(self, start=0):
        self.start = start
        self.file = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        # What only a main thread may do.
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        self.total = self.start
        return self.look(), {"pid": os.getpid(), "drawn": self.np_random.random(2), "env": self}

    def look(self):
        return {"total": np.array([self.total], np.float32)}

    def step(self, action):
        value = float(action[0])
        if value == 9:
            print("x" * 3_000_000, flush=True)  # noqa: T201
        if value == 8:
            time.sleep(3600)
        if value == 7:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115
        if value == 6:
            return self.look(), float("nan"), False, False, {}
        self.total += value
        info = {"half": "\ud800", "\ud800": 1, "whole": 2}
        return self.look(), np.float32(value), np.bool_(self.total >= 20), False, info

    def close(self):
        _ = self.total  # there is none before a reset
        if folder := os.environ.get("CLOSED_IN"):
            open(os.path.join(folder, f"closed-{os.getpid()}"), "w").close()
        if self.start == 13:
            time.sleep(3600)


class Stuck(Slot):
    """Its close never ends, whatever interrupts it."""

    def close(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)


def tell(seen, info):
    """Tell the total; a total of 5 is what this function cannot do."""
    total = int(seen["total"][0])
    if total == 5:
        raise LookupError("five")
    if total == 4:
        return "x" * 20_000_000
    return [f"total {total}", np.full((2, 2), total, np.uint8)]


def read(text):
    """Read a number."""
    return [float(text)]
