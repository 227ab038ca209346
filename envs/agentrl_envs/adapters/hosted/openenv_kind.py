"""OpenEnv: one WebSocket to a running server, and so one session there, per episode.

The protocol is the same in every release from 0.2.3 to 0.10, while their clients differ: they are
synchronous or not, and a newer one opens another session, with another world, behind a socket that
was closed. So this speaks the protocol itself.
"""

# The library is in another venv, so a type checker cannot see it from here.
# pyright: basic, reportMissingImports=false

import contextlib
import json

NEEDS = {"websockets": "15.0"}
"""Its connections in threads had no `ping_interval` before."""
HIDDEN = ("done", "reward", "metadata")
"""Of an observation: what is no observation."""
PLAYED = "servers of OpenEnv 0.2.3 to 0.10 are played"
MESSAGE_BYTES = 100 * 2**20
"""Most that a server may send at once, as in OpenEnv's own client."""


def preload():
    """Import the library, which every release of OpenEnv brings along."""
    import websockets.sync.client  # noqa: F401


def build_socket_url(url):
    """Return the address of a server's WebSocket."""
    scheme, _, rest = url.rstrip("/").rpartition("://")
    return f"{'wss' if scheme in ('https', 'wss') else 'ws'}://{rest}/ws"


class OpenEnvSession:
    """One session of a server."""

    def __init__(self, params):
        from websockets.exceptions import InvalidHandshake, InvalidMessage
        from websockets.sync.client import connect

        self.key = params["observation_key"]
        url = build_socket_url(params["url"])
        # Deadlines of answers are the asker's, who ends this process: an answer that nobody waits
        # for any more would be taken for the answer to the next action.
        try:
            self.socket = connect(
                url, open_timeout=params["timeout_s"], max_size=MESSAGE_BYTES, ping_interval=None
            )
        except (InvalidHandshake, InvalidMessage) as error:
            raise RuntimeError(f"there is no WebSocket at {url}: {error}; {PLAYED}") from error
        except OSError as error:
            raise ConnectionError(
                f"no server answers at {url}: {error}; start it, or set url to its address"
            ) from error

    def reset(self, seed, options):
        answer = self.request("reset", {"seed": seed, **options})
        if answer["type"] == "error":
            raise RuntimeError(describe_error(answer))
        return self.render(answer["data"])

    def step(self, action):
        """Do one action, an object; say what is wrong with one that is no action of the server."""
        answer = self.request("step", action)
        if answer["type"] != "error":
            return self.render(answer["data"])
        if (wrong := find_faults(action, answer["data"])) is not None:
            return {"invalid": wrong}
        raise RuntimeError(describe_error(answer))

    def request(self, kind, data):
        from websockets.exceptions import ConnectionClosed

        try:
            self.check_silence(kind)
            self.socket.send(json.dumps({"type": kind, "data": data}))
            answer = read_answer(kind, self.socket.recv())
        except ConnectionClosed as error:
            raise RuntimeError(
                f"the server closed the connection at {kind}: {error}; its log says why"
            ) from error
        check_answer(kind, answer)
        return answer

    def check_silence(self, kind):
        """Raise `RuntimeError` for a message that nobody asked for: it would answer the request."""
        with contextlib.suppress(TimeoutError):
            message = self.socket.recv(timeout=0)
            raise RuntimeError(
                f"before {kind} the server said {message[:80]!r}, which nobody asked for; it has "
                "to answer each request once"
            )

    def close(self):
        self.socket.close()

    def render(self, result):
        observation, reward = result["observation"], result.get("reward")
        if self.key:
            if self.key not in observation:
                raise KeyError(f"the observation has no {self.key!r}; it has {sorted(observation)}")
            observation = observation[self.key]
        elif isinstance(observation, dict):
            observation = {k: v for k, v in observation.items() if k not in HIDDEN}
        return {
            "text": observation
            if isinstance(observation, str)
            else json.dumps(observation, ensure_ascii=False),
            "reward": 0.0 if reward is None else float(reward),
            "terminated": bool(result["done"]),
            "truncated": False,
        }


def read_answer(kind, line):
    """Return the JSON of a message; raise `RuntimeError` for one that is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RuntimeError(
            f"the server answered {line[:80]!r} to {kind}, which is no JSON: {error}; {PLAYED}"
        ) from error


def check_answer(kind, answer):
    """Raise `RuntimeError` for an answer that another protocol has: its reward would be a guess."""
    type, data = None, {}
    if isinstance(answer, dict) and isinstance(answer.get("data"), dict):
        type, data = answer.get("type"), answer["data"]
    if type == "error":
        return
    if type != "observation" or not {"observation", "done"} <= data.keys():
        raise RuntimeError(
            f"the server answered {json.dumps(answer)[:200]} to {kind}, which is no observation "
            f"with `done` and no error; {PLAYED}"
        )
    # OpenEnv's own models allow these; a text that is read as one would be a guess.
    done, reward = data["done"], data.get("reward")
    if not isinstance(done, bool) or not (reward is None or isinstance(reward, (int, float))):
        raise RuntimeError(
            f"the server answered {kind} with done {done!r:.80} and reward {reward!r:.80}; `done` "
            "is true or false, and `reward` a number or null"
        )
    if done and kind == "reset":
        raise RuntimeError(
            "the server answered reset with done true: an episode that has ended cannot be played; "
            "let the environment's reset return done=False"
        )
    if done and reward is None:
        raise RuntimeError(
            f"the server ended the episode with reward null at {kind}: nobody computed one; let "
            "the environment set the reward of its last observation, 0 too"
        )


def describe_error(answer):
    """Return a server's error in a line."""
    data = answer.get("data") or {}
    return f"the server says {data.get('code')}: {data.get('message')}"


def find_faults(action, error):
    """Return the faults of an action in a server's error; None if it is about something else.

    A server says VALIDATION_ERROR of an action that is none, and of a model of its own that it
    fills wrongly. An error is about the action where its input is what stands there in the action.
    """
    errors = error.get("errors") or []
    if error.get("code") != "VALIDATION_ERROR" or not errors or not isinstance(errors, list):
        return None
    if not all(is_fault(fault) and is_about(action, fault) for fault in errors):
        return None
    return "; ".join(
        f"{'.'.join(map(str, f.get('loc', []))) or 'action'}: {f['msg']}" for f in errors
    )


def is_fault(fault):
    """Return whether an entry says where something is wrong, and what."""
    if not isinstance(fault, dict):
        return False
    return isinstance(fault.get("loc", []), list) and isinstance(fault.get("msg"), str)


def is_about(action, fault):
    """Return whether a fault was found in an action."""
    loc = fault.get("loc", ())
    # What is missing has no input but the object that it is missing from.
    inside = loc[:-1] if fault.get("type") == "missing" else loc
    part = action
    for step in inside:
        try:
            part = part[step]
        except (KeyError, IndexError, TypeError):
            return False
    return "input" in fault and fault["input"] == part


EPISODE = OpenEnvSession
