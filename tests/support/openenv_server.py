"""An OpenEnv server for its own interpreter, of any release: `openenv_server.py PORT`."""

# pyright: basic, reportMissingImports=false
import os
import socket
import sys
import time

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    message: str


class Heard(Observation):
    echo: str = ""
    count: int = 0


def hang_up():
    """End every connection, as a proxy does that has been silent for too long."""
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                connection.getpeername()
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Echo(Environment):
    """Says what it hears; a message is worth its length, and `bye` ends."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.count = 0

    def reset(self, seed=None, episode_id=None, **options):
        self.count = 0
        return Heard(echo=f"ready {seed} {options}", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **options):
        self.count += 1
        if action.message.startswith("sleep"):
            time.sleep(float(action.message[5:]))
        if action.message == "raise":
            raise KeyError("the world is broken")
        if action.message == "invalid":
            return Heard(echo=7)
        if action.message == "hang up":
            hang_up()
        if action.message == "die":
            os._exit(9)
        paid = float(len(action.message))
        done = action.message == "bye"
        return Heard(echo=action.message, count=self.count, done=done, reward=paid)

    @property
    def state(self):
        return State(step_count=self.count)


app = create_app(Echo, Say, Heard, env_name="echo", max_concurrent_envs=8)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
