"""A host of environments: `python host.py KIND.py SETUP`, spoken to in JSON lines.

It imports a library once and forks a child for every episode, so a start is cheap, an episode that
hangs can be killed, and a world is copied by forking its process. One thread, and a pipe per child.

    -> {"id": 1, "session": 7, "method": "open", "params": {...}}
    <- {"id": 1, "result": ...}             or {"id": 1, "error": "ValueError: ..."}
    -> {"id": 2, "session": 8, "method": "fork", "params": {"of": 7}}
    -> {"session": 7, "method": "end"}      it may clean up, and has to be killed if it does not end
    -> {"session": 7, "method": "kill"}
    <- {"session": 7, "gone": "killed by signal 9"}

SETUP is JSON: `path`, folders for the import path, and `imports`, modules that are imported once. A
kind has `preload()`, and `EPISODE`, a class with a method for every other method, perhaps with a
`close` and with `facts`, the answer to `open`. One that is asked things outside of episodes has
`ask(params)`, and perhaps `close_asked()`, which puts away what that made; one of which more can be
done once than an import has `warm_up(params)`, called with those of the first episode before it is
forked. `NEEDS` has the oldest release that is played, by the name of a package; an older one is
refused before anything is imported.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import re
import selectors
import signal
import socket
import sys
import threading
import traceback
from importlib.metadata import PackageNotFoundError, version
from typing import Any, BinaryIO, NoReturn

READ_BYTES = 2**16
MESSAGE_BYTES = 2**24
CLOSE_S = 10.0
"""Time in which what was made to answer a question has to be put away."""
Message = dict[str, Any]


def load_kind(path: str) -> Any:
    """Return a kind's module; its folder is not on the import path, where it could hide others."""
    spec = importlib.util.spec_from_file_location("agentrl_hosted_kind", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_releases(needs: dict[str, str]) -> None:
    """Raise `ImportError` for an installed package that is older than its oldest release."""
    for package, oldest in needs.items():
        try:
            release = version(package)
        except PackageNotFoundError:
            continue  # importing it says so, and it may be there without its metadata
        if read_release(release) < read_release(oldest):
            raise ImportError(
                f"{package} {release} is too old, {oldest} or newer is needed: "
                f"{sys.executable} -m pip install '{package}>={oldest}'"
            )


def read_release(release: str) -> list[int]:
    """Return the numbers that a release begins with, without zeros at their end."""
    numbers = re.match(r"\d+(\.\d+)*", release)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and parts[-1] == 0:
        parts.pop()
    return parts


class LineSplitter:
    """Splits what arrives into lines."""

    def __init__(self) -> None:
        self.rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now; the work is linear in the data."""
        first, *others = data.split(b"\n")
        self.rest += first
        lines: list[bytes] = []
        for part in others:
            lines.append(bytes(self.rest))
            self.rest = bytearray(part)
        if len(self.rest) > MESSAGE_BYTES:
            raise ValueError(f"a line of more than {MESSAGE_BYTES} bytes")
        return lines


# -- the host -------------------------------------------------------------------------------------


class EpisodeProcess:
    """One episode's process, as the host sees it."""

    def __init__(self, session: int, channel: socket.socket, pid: int | None) -> None:
        self.session = session
        self.channel = channel
        self.pid = pid
        self.is_copy = pid is None
        """Forked by another child, so not ours to reap; its first answer says its pid."""
        self.lines = LineSplitter()
        self.waiting: list[int | None] = []


class HostServer:
    """Hands requests to children and their answers back."""

    def __init__(self, kind: Any, out: BinaryIO) -> None:
        self.kind = kind
        self.out = out
        self.children: dict[int, EpisodeProcess] = {}
        self.is_warm = False
        self.selector = selectors.DefaultSelector()
        self.selector.register(0, selectors.EVENT_READ, None)
        self.asked = LineSplitter()

    def run(self) -> None:
        """Serve until nobody asks any more; then every child ends."""
        while True:
            for key, _ in self.selector.select():
                if key.data is not None:
                    self.hear(key.data)
                    continue
                data = os.read(0, READ_BYTES)
                if not data:
                    return
                for line in self.asked.feed(data):
                    self.request(json.loads(line))

    def say(self, message: Message) -> None:
        self.out.write(json.dumps(message).encode() + b"\n")
        self.out.flush()

    def request(self, message: Message) -> None:
        session, method = message.get("session", 0), message["method"]
        child = self.children.get(session)
        try:
            if method == "open":
                self.spawn(session, message)
            elif method == "fork":
                self.fork(session, message)
            elif method in ("end", "kill"):
                if child is not None:
                    self.kill(child, signal.SIGTERM if method == "end" else signal.SIGKILL)
            elif method == "ask":
                self.ask(message)
            elif child is None:
                self.say({"id": message["id"], "error": f"there is no session {session}"})
            else:
                self.hand(child, message)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            self.say({"id": message.get("id"), "error": describe_error(error)})

    def ask(self, message: Message) -> None:
        """Answer outside of any episode; then put away what that took, or end with it."""
        try:
            self.say({"id": message["id"], "result": self.kind.ask(message["params"])})
        finally:
            ending = threading.Timer(CLOSE_S, os._exit, (0,))
            ending.start()
            # What was never reset may have nothing that it can close.
            with contextlib.suppress(Exception):
                getattr(self.kind, "close_asked", lambda: None)()
            ending.cancel()

    def hand(self, child: EpisodeProcess, message: Message) -> None:
        child.waiting.append(message["id"])
        child.channel.sendall(json.dumps(message).encode() + b"\n")

    def spawn(self, session: int, message: Message) -> None:
        if not self.is_warm:
            self.is_warm = True
            if (warm_up := getattr(self.kind, "warm_up", None)) is not None:
                # What is wrong there, its first episode says; code of the config's may exit, too.
                with contextlib.suppress(Exception, SystemExit):
                    warm_up(message["params"])
            gc.collect()
            gc.freeze()  # a collection in an episode would copy the memory of all that is here
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            channels = [child.channel for child in self.children.values()]
            serve(self.kind.EPISODE, theirs, [*channels, ours])
        theirs.close()
        self.add(EpisodeProcess(session, ours, pid))
        self.hand(self.children[session], message)

    def fork(self, session: int, message: Message) -> None:
        """Have a child fork itself: its copy gets the channel that is sent along."""
        source = self.children[message["params"]["of"]]
        ours, theirs = socket.socketpair()
        line = json.dumps({"id": None, "method": "fork"}).encode() + b"\n"
        socket.send_fds(source.channel, [line], [theirs.fileno()])
        theirs.close()
        self.add(EpisodeProcess(session, ours, None))
        self.hand(self.children[session], {"id": message["id"], "method": "alive"})

    def add(self, child: EpisodeProcess) -> None:
        self.children[child.session] = child
        self.selector.register(child.channel, selectors.EVENT_READ, child)

    def kill(self, child: EpisodeProcess, with_signal: signal.Signals) -> None:
        if child.pid is None:
            # It has not begun, and ends when it does.
            child.channel.shutdown(socket.SHUT_RDWR)
        else:
            # It still holds its channel, so the pid is still its own.
            os.kill(child.pid, with_signal)

    def hear(self, child: EpisodeProcess) -> None:
        try:
            data = child.channel.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self.reap(child)
            return
        for line in child.lines.feed(data):
            answer = json.loads(line)
            if answer["id"] in child.waiting:
                child.waiting.remove(answer["id"])
            child.pid = answer.get("pid", child.pid)
            self.out.write(line + b"\n")
            self.out.flush()

    def reap(self, child: EpisodeProcess) -> None:
        self.selector.unregister(child.channel)
        child.channel.close()
        del self.children[child.session]
        how = "ended"
        if child.pid is not None and not child.is_copy:
            code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
            how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        for id in child.waiting:
            self.say({"id": id, "error": f"its process {how}"})
        self.say({"session": child.session, "gone": how})


# -- a child --------------------------------------------------------------------------------------


def serve(world_of: Any, channel: socket.socket, others: list[socket.socket]) -> NoReturn:
    """Answer the requests of one episode; never returns."""
    code = 1
    try:
        for other in others:
            other.close()
        signal.signal(signal.SIGTERM, interrupt)
        # The host's stdin is not ours to read.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        reseed()
        HostedEpisode(world_of, channel).run()
        code = 0
    except BaseException:  # noqa: BLE001 - a child ends here, whatever it did
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def reseed() -> None:
    """Draw other numbers than other episodes, from NumPy's global generator: all of them begin with
    the host's. Python reseeds its own when it forks."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        # One that a library has put in its place may take no seed.
        with contextlib.suppress(Exception):
            numpy_random.seed(int.from_bytes(os.urandom(4), "big"))


def interrupt(*_: Any) -> NoReturn:
    """End as by Ctrl-C: what runs may remove what it has made."""
    raise KeyboardInterrupt


class HostedEpisode:
    """One world and the channel it is asked through."""

    def __init__(self, world_of: Any, channel: socket.socket) -> None:
        self.world_of = world_of
        self.world: Any = None
        self.channel = channel
        self.lines = LineSplitter()
        self.descriptors: list[int] = []

    def run(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self.channel, READ_BYTES, 4)
            self.descriptors += descriptors
            if not data:
                break
            for line in self.lines.feed(data):
                message = json.loads(line)
                if message["method"] == "fork":
                    self.fork(self.descriptors.pop(0))
                    continue
                self.channel.sendall(encode_answer(self.answer(message)))
        if (close := getattr(self.world, "close", None)) is not None:
            close()

    def answer(self, message: Message) -> Message:
        try:
            method, params = message["method"], message.get("params", {})
            if method == "open":
                self.world = self.world_of(params)
                return {"id": message["id"], "result": getattr(self.world, "facts", None)}
            if method == "alive":
                return {"id": message["id"], "result": None, "pid": os.getpid()}
            return {"id": message["id"], "result": getattr(self.world, method)(**params)}
        except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - told to whoever asked
            traceback.print_exc()
            return {"id": message["id"], "error": describe_error(error)}

    def fork(self, descriptor: int) -> None:
        """Go on twice: the copy answers on a channel of its own, and draws the same numbers."""
        python_random: Any = sys.modules.get("random")
        state = python_random and python_random.getstate()
        # By way of a process that ends at once, so that nobody has to reap the copy: handlers of
        # signals are the library's.
        between = os.fork()
        if between == 0 and os.fork() != 0:
            os._exit(0)
        if between != 0:
            os.waitpid(between, 0)
            os.close(descriptor)
            return
        if python_random is not None:  # Python reseeds it when it forks
            python_random.setstate(state)
        self.channel.close()
        self.channel = socket.socket(fileno=descriptor)
        self.lines = LineSplitter()


def encode_answer(answer: Message) -> bytes:
    """Return an answer as a line; an error in its place where it is none, or too long."""
    try:
        line = json.dumps(answer).encode()
    except (TypeError, ValueError) as error:
        line, fault = b"", f"the answer is no JSON: {describe_error(error)}"
    else:
        fault = f"the answer has {len(line)} bytes, but the limit is {MESSAGE_BYTES}"
    if not line or len(line) >= MESSAGE_BYTES:
        line = json.dumps({"id": answer["id"], "error": fault}).encode()
    return line + b"\n"


def describe_error(error: BaseException) -> str:
    """Return an error in a line of valid Unicode, whatever its text is."""
    try:
        text = str(error)
    except Exception as wrong:  # noqa: BLE001 - a text of the library's own
        text = f"its text raises {type(wrong).__name__}"
    line = f"{type(error).__name__}: {text}"[:2000]
    return line.encode(errors="backslashreplace").decode()


def main() -> None:
    # What a library prints must not be taken for an answer.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if place != here]
    setup = json.loads(sys.argv[2])
    sys.path[:0] = setup["path"]
    host = HostServer(load_kind(sys.argv[1]), out)
    try:
        check_releases(getattr(host.kind, "NEEDS", {}))
        host.kind.preload()
        for name in setup["imports"]:
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        host.say({"id": 0, "error": describe_error(error)})
        return
    host.say({"id": 0, "result": None})
    host.run()
    for child in host.children.values():
        child.channel.close()


if __name__ == "__main__":
    main()
