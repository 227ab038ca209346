"""A kind for hosts that needs no library: it counts, and does whatever else it is told."""

# pyright: basic
import os
import random
import sys
import time


def preload():
    print("what a library prints at its import", flush=True)  # noqa: T201
    if "NO_LIBRARY" in os.environ:
        raise ImportError("no such library")
    time.sleep(float(os.environ.get("SLOW_S", "0")))


def warm_up(params):
    if name := params.get("warm_up_raises"):
        raise {"SystemExit": SystemExit, "ValueError": ValueError}[name]


def ask(params):
    return params


class World:
    def __init__(self, params):
        self.total = params.get("total", 0)

    def add(self, amount):
        print("what a library prints", flush=True)  # noqa: T201
        os.write(1, b'{"id": 1, "result": "forged"}\n')
        self.total += amount
        return self.total

    def variables(self):
        return sorted(os.environ)

    def pid(self):
        return os.getpid()

    def long(self, size):
        return "x" * size

    def nest(self, depth):
        value = []
        for _ in range(depth):
            value = [value]
        return value

    def seed(self, number):
        for generator in generators():
            generator.seed(number)

    def draw(self):
        return [generator.random() for generator in generators()]

    def hang(self):
        time.sleep(3600)

    def crash(self):
        os._exit(7)

    def fail(self):
        raise ValueError("wrong")

    def leave(self):
        raise SystemExit("left")

    def fail_badly(self):
        raise UntoldError("\ud800")

    def fail_untold(self):
        raise UntoldError

    def close(self):
        pass


def generators():
    """Return the modules with random numbers for the whole process: NumPy's where it is there."""
    return [random, *([sys.modules["numpy.random"]] if "numpy.random" in sys.modules else [])]


class UntoldError(Exception):
    """An error whose text is half a character, or none that can be had."""

    def __str__(self):
        return self.args[0]


EPISODE = World
