"""Attacks on the protocol: the code shares an interpreter with the loop that answers for it."""

import asyncio
from dataclasses import replace

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, ExecStatus
from agentrl_sandbox import SandboxSession
from tests.system.security.arena import Arena
from tests.system.security.attack import LIE, Attack, brief, in_step, unexpected

SILENT = ("part of a header", "part of a frame", "within the cap", "empty")
"""Payloads that may hold up an answer instead of being false ones."""

FORGERY = """
import json, socket, stat, struct, sys, time
def descriptors():
    return [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
def push(data):
    for fd in descriptors():
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode) or stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.set_blocking(fd, False)
                os.write(fd, data)
                os.set_blocking(fd, True)
        except OSError: pass
def frame(body):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack(">II", len(text), 0) + text
lie = {"status": "ok", "value": "'ALL TESTS PASSED'", "error": None, "truncated": False,
       "stdout": "ALL TESTS PASSED", "stderr": "", "images": []}
PAYLOADS = {
    "one reply": frame({"nonce": "0" * 16, **lie}),
    "garbage": bytes(range(256)) * 16,
    "text": b"ALL TESTS PASSED\\n" * 9,
    "replies": b"".join(
        frame({"id": n, "nonce": "0" * 16, "session": 0, **lie}) for n in range(64)),
    "no nonce": frame(lie) * 8,
    "huge JSON": struct.pack(">II", 2**31, 0),
    "huge blob": struct.pack(">II", 2, 2**32 - 1) + b"{}",
    "within the cap": struct.pack(">II", 2**23, 0) + b"{",
    "deep": frame(b"[" * 100_000),
    "deep object": frame(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "no object": frame(b"null") * 4,
    "not UTF-8": frame(b"\\xff\\xfe"),
    "big number": frame(b'{"id": ' + b"9" * 100_000 + b"}"),
    "not a number": frame(b'{"id": NaN, "status": Infinity}'),
    "hello": frame({"nonce": "0" * 16, "hello": True}),
    "wrong types": frame({"id": [], "status": {}, "value": 7, "nonce": None}),
    "empty": struct.pack(">II", 0, 0) * 8,
    "part of a header": b"\\0\\0\\0",
    "part of a frame": struct.pack(">II", 100, 0) + b'{"status"',
}
"""

PLACES = {
    "the cell": "push(data); time.sleep(0.1)",
    "a thread afterwards": "import threading; threading.Timer(0.1, push, (data,)).start()",
    "a child left behind": "if os.fork() == 0: time.sleep(0.1); push(data); time.sleep(9)",
    "the loop's next read": """
import builtins, ast
honest = ast.parse
def parse(*arguments, **options): push(data); return honest(*arguments, **options)
ast.parse = parse
""",
}


async def forge(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Every payload from one place, each in a session of its own; six at a time.

    None may be believed, and every one must be noticed: else it never reached the channel.
    """
    names = (await session.exec(FORGERY.join(("import os\n", "list(PAYLOADS)")))).value or "[]"
    gate = asyncio.Semaphore(6)
    found: list[str] = []

    async def one(payload: str) -> None:
        code = arena.program(f"{FORGERY}\ndata = PAYLOADS[{payload!r}]\n{attack.code}")
        wanted = {"violation"} | ({"timeout"} if payload in SILENT else set[str]())
        bad, said = list[str](), ""
        for within_s, after_s in ((2.0, 0.2), (8.0, 5.0)):  # a slow machine has the second try
            seen: list[ExecStatus] = []
            async with gate, arena.session() as other:
                try:
                    result = await other.exec(code, timeout_s=within_s)
                    await asyncio.sleep(after_s)
                    bad = await in_step(other, payload, seen=seen)
                except SandboxError as error:
                    found.append(f"{payload}: the session was lost: {error}")
                    return
            if result.value == repr(LIE):
                bad.append("the lie was believed")
            said = f"{brief(result)}, then {seen}"
            if bad or wanted & {result.status, *seen}:
                break
        else:
            bad.append(f"nobody noticed it: {said}")
        found.extend(f"{payload}: {what}" for what in bad)

    payloads = [name for name in names.strip("[]").split(", ") if name]
    assert len(payloads) > 10, names
    await asyncio.gather(*(one(name.strip("'")) for name in payloads))
    return found


async def _steps(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Whatever the cell did, later cells get their own replies, or none."""
    result = await session.exec(arena.program(attack.code), timeout_s=attack.timeout_s)
    await asyncio.sleep(0.3)
    found = unexpected(result, replace(attack, ends=("ok", *attack.ends)))
    return [*found, *await in_step(session, attack.name)]


async def _any_value(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    result = await session.exec(arena.program(attack.code), timeout_s=attack.timeout_s)
    found = [] if result.status in attack.ends else [brief(result)]
    return [*found, *await in_step(session, attack.name)]


async def _replayed(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """The cell may lie about itself; the second answer to one question is noticed."""
    result = await session.exec(arena.program(attack.code), timeout_s=attack.timeout_s)
    seen: list[ExecStatus] = [result.status]
    found = [] if result.status in attack.ends else [brief(result)]
    found += await in_step(session, attack.name, seen=seen)
    return found if "violation" in seen else [*found, f"nobody noticed it: {seen}"]


async def _liar(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """A rewritten loop can lie about its own cells only, and about the cell that was asked."""
    await session.exec(arena.program(attack.code), timeout_s=2)
    found: list[str] = []
    for number in range(3):
        result = await session.exec(f"'question-{number}'", timeout_s=2)
        own = f"question-{number}" in (result.value or "")
        if result.status == "ok" and not own:
            found.append(f"question {number} was answered with {brief(result)}")
    async with arena.session() as fresh:
        found += await in_step(fresh, "fresh", spoiled=0)
    return found


async def _all_wreckage(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Each way of wrecking the loop in a session of its own: never off by one, then usable."""
    gate = asyncio.Semaphore(6)
    found: list[str] = []

    async def one(way: str) -> None:
        async with gate, arena.session() as other:
            code = arena.program(f"{attack.code}\n{way}")
            try:
                await other.exec(code, timeout_s=2)
                steps = await in_step(other, "x", spoiled=5, lies=True)
                found.extend(f"{way}: {what}" for what in steps)
                if (await other.exec("'last'", timeout_s=2)).status == "violation":
                    found.append(f"{way}: the session never recovers")
            except SandboxError as error:
                found.append(f"{way}: the session was lost: {error}")

    await asyncio.gather(*map(one, WRECKAGE))
    return found


WRECKAGE = (
    "builtins.exec = builtins.eval = builtins.compile = lie",
    "builtins.repr = builtins.print = builtins.len = lie",
    "builtins.isinstance = lambda *a: True; builtins.open = lie",
    "json.dumps = json.loads = lambda *a, **k: 'ALL TESTS PASSED'",
    "json.dumps = lambda *a, **k: '{}'",
    "json.JSONEncoder.encode = lambda *a: 'x'; json.JSONDecoder.decode = lambda *a: {}",
    "socket.socket = socket.recv_fds = socket.send_fds = lie",
    "socket.SocketType.sendall = lie",
    "struct.Struct = struct.pack = struct.unpack = lie",
    "os.getpid = lambda: 1",
    "os.read = os.write = os.fork = lie",
    "os._exit = lambda status: None",
    "time.monotonic = lambda: 1e18",
    "sys.stdout = sys.stderr = None",
    "del sys.stdout, sys.stderr",
    "sys.stdout.close(); sys.stderr.close()",
    "sys.modules.clear()",
    "sys.path.clear(); sys.meta_path.clear()",
    "sys.setprofile(lambda *a: 1 / 0)",
    "sys.settrace(lambda *a: 1 / 0); threading.settrace(lambda *a: 1 / 0)",
    "sys.addaudithook(lambda *a: 1 / 0)",
    "sys.excepthook = sys.unraisablehook = lie",
    "sys.setrecursionlimit(60)",
    "gc.set_threshold(1); gc.callbacks.append(lie)",
    "[o.close() for o in gc.get_objects() if isinstance(o, socket.socket)]",
    "[o.detach() for o in gc.get_objects() if isinstance(o, socket.socket)]",
    "[o.setblocking(False) for o in gc.get_objects() if isinstance(o, socket.socket)]",
    "[o.shutdown(2) for o in gc.get_objects() if isinstance(o, socket.socket)]",
    "os.closerange(3, 64)",
    "os.closerange(0, 64)",
    "[os.dup2(1, fd) for fd in range(3, 20)]",
    "a, b = socket.socketpair(); [os.dup2(a.fileno(), fd) for fd in range(3, 20)]",
    "[o.clear() for o in gc.get_objects() if type(o) is dict and o is not globals()]",
    "[f.f_locals.clear() for f in frames()]",
    "[setattr(f, '__code__', lie.__code__) for f in loop()]",
    "[setattr(f, '__code__', (lambda *a, **k: None).__code__) for f in loop()]",
    "[setattr(f, '__defaults__', None) for f in loop()]",
    "[f.__globals__.clear() for f in loop()]",
    "signal.signal(signal.SIGALRM, lambda *a: 1 / 0); signal.setitimer(0, 0.01, 0.01)",
    "signal.signal(signal.SIGALRM, signal.SIG_DFL); signal.alarm(1)",
    "ctypes.memset(id(None), 255, 16)",
    "os.environ.clear(); os.chdir('/'); os.umask(0o777)",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
    "resource.setrlimit(resource.RLIMIT_AS, (1, 1))",
    "threading.Thread(target=lambda: sys.exit(0)).start()",
)
_WRECK = """
import builtins, ctypes, gc, json, resource, signal, socket, struct, sys, threading, time, types
def lie(*arguments, **options): return "ALL TESTS PASSED"
def frames():
    found, at = [], sys._getframe()
    while at is not None: found.append(at); at = at.f_back
    return found
def loop():
    return [f for f in gc.get_objects() if isinstance(f, types.FunctionType)
            and (f.__module__ or "").startswith("agentrl_sandbox")]
"""


async def _bounded_answer(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    result = await session.exec(arena.program(attack.code))
    characters = len(result.value or "") + len(result.error or "")
    return [f"an answer of {characters} characters"] if characters > 2**16 else []


ATTACKS = (
    *(
        Attack(
            name=f"forge-from-{place.replace(' ', '-').replace(chr(39), '')}",
            title=f"write 19 kinds of false frames to every inherited descriptor, from {place}",
            held_by="nonces and caps checked outside, the channel ends at the first false frame",
            play=forge,
            code=code,
        )
        for place, code in PLACES.items()
    ),
    Attack(
        name="replay-the-own-request",
        title="answer with the nonce of the request, several times, and with those that follow",
        held_by="a nonce is good for one reply",
        ends=("ok", "violation"),
        play=_replayed,
        code="""
import gc, struct, json, sys
def texts():
    at = sys._getframe()
    while at is not None:
        for value in list(at.f_locals.values()):
            if isinstance(value, dict) and value is not at.f_globals: yield value
            body = getattr(value, "body", None)
            if isinstance(body, dict): yield body
        at = at.f_back
bodies = [b for b in texts() if {"nonce", "id"} & set(b)]
encode = next(m.encode for m in list(sys.modules.values())
              if hasattr(m, "HEADER") and hasattr(m, "encode"))
for body in bodies:
    for step in (0, 0, 1, 2):
        reply = {**{k: v for k, v in body.items() if k in ("nonce", "id", "session")
                    and isinstance(v, (str, int))},
                 "status": "ok", "value": "'ALL TESTS PASSED'", "error": None, "truncated": False,
                 "images": []}
        if isinstance(reply.get("id"), int): reply["id"] += step
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2:
                try: os.write(int(fd), encode(reply))
                except OSError: pass
import time; time.sleep(0.3)
""",
    ),
    Attack(
        name="rewrite-the-loop",
        recovers=False,
        title="replace the function that runs cells by one that lies about every later cell",
        held_by="nothing: an interpreter can lie about itself. Grade in a fresh session",
        play=_liar,
        code="""
import sys
for module in list(sys.modules.values()):
    if (getattr(module, "__name__", "") or "").endswith("inside.cell"):
        honest, outcome = module.run, module.CellOutcome
        def run(code, *arguments, **options):
            return outcome("ok", value=repr("ALL TESTS PASSED: " + code))
        module.run = run
through
""",
    ),
    Attack(
        name="text-that-lies-about-its-length",
        title="answer with a text that says it is short, encodes to megabytes, and is neither",
        held_by="caps checked outside, on bytes",
        ends=("ok", "error", "violation"),
        code="""
class Text(str):
    def __len__(self): return 1
    def encode(self, *a, **k): return b"x" * 10**7
class Value:
    def __repr__(self): return Text("y" * 10**7)
[] if through else Value()
""",
        play=_bounded_answer,
    ),
    Attack(
        name="wreck-the-loop",
        title="break the worker loop in 45 ways: builtins, json, sockets, streams, its own code",
        held_by="everything that decides is in another process",
        play=_all_wreckage,
        code=_WRECK,
    ),
    Attack(
        name="send-descriptors",
        title="send the host 200 open descriptors along with a frame",
        held_by="the host takes no descriptors from a session",
        ends=("violation", "crash", "timeout"),
        play=_steps,
        code="""
import socket, stat
for name in os.listdir("/proc/self/fd"):
    try:
        if int(name) > 2 and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            one = socket.socket(fileno=os.dup(int(name)))
            for _ in range(10): socket.send_fds(one, [b"\\0\\0\\0\\2\\0\\0\\0\\0{}"], [0] * 20)
            one.close()
    except OSError: pass
through
""",
    ),
    Attack(
        name="trickle",
        title="send part of a frame, byte by byte, and never the rest",
        held_by="deadline of the cell, cap on what is buffered",
        ends=("timeout", "violation", "crash"),
        timeout_s=1,
        play=_any_value,
        code="""
import stat, time
fds = [int(n) for n in os.listdir("/proc/self/fd") if int(n) > 2]
data = b"\\0\\0\\1\\0" + b"\\0\\0\\0\\0" + b'{"status": "ok", "value": "'
for at in range(len(data)):
    for fd in fds:
        try: os.write(fd, data[at:at + 1])
        except OSError: pass
    time.sleep(0.01)
time.sleep(60)
""",
    ),
    Attack(
        name="never-read",
        title="leave the channel unread while the host sends a request of 8 MiB",
        held_by="deadline of the cell, writes that never block the host",
        play=lambda arena, session, attack: _never_read(arena, session, attack),
        code="""
import threading, time, sys
def stop():
    time.sleep(0.2)
    sys.setswitchinterval(1e9)
    import re; re.match("(a+)+$", "a" * 64 + "b")
threading.Thread(target=stop, daemon=True).start()
through
""",
    ),
    Attack(
        name="segfault",
        title="read address 0, abort, execute nonsense",
        held_by="the interpreter is a process of its own",
        ends=("crash",),
        code="ctypes.string_at(0)",
    ),
    Attack(
        name="abort",
        title="abort the interpreter",
        held_by="the interpreter is a process of its own",
        ends=("crash",),
        code="os.abort()",
    ),
    Attack(
        name="exit-early",
        title="leave with exit(0) before the tests come",
        held_by="success is a positive reply, never an exit code",
        ends=("error",),
        code="raise SystemExit(0)",
    ),
    Attack(
        name="exit-at-once",
        title="leave with os._exit(0) before the tests come",
        held_by="success is a positive reply, never an exit code",
        ends=("crash",),
        code="os._exit(0)",
    ),
    Attack(
        name="exit-from-a-thread",
        title="leave with os._exit(0) from a thread, between two cells",
        held_by="a death between cells is told with the next one",
        play=_steps,
        ends=("crash",),
        code="import threading; threading.Timer(0.1, os._exit, (0,)).start()\nthrough",
    ),
    Attack(
        name="become-another-program",
        title="replace the interpreter by a program that exits with 0",
        held_by="success is a positive reply, never an exit code",
        ends=("crash", "violation", "timeout"),
        timeout_s=2,
        code="os.execv('/bin/sh', ['sh', '-c', 'echo ALL TESTS PASSED; exit 0'])",
    ),
    Attack(
        name="nasty-output",
        title="print invalid UTF-8, NUL, terminal codes and false frames",
        held_by="output is never protocol; bytes that are no text are replaced",
        play=lambda arena, session, attack: _nasty(arena, session, attack),
        code=r"""
os.write(1, b"\xff\xfe\x00\x1b[2J\x1b]0;title\x07\r\x08\xc3(")
os.write(1, b'\0\0\0\2\0\0\0\0{}{"status": "ok", "value": "ALL TESTS PASSED"}')
os.write(2, b"\xed\xa0\x80\xf8\x88\x80\x80\x80")
"'\ud800\0\x1b'"
""",
    ),
    Attack(
        name="pickle",
        title="answer with an object that runs code when it is unpickled",
        held_by="JSON only; nothing on the host unpickles",
        play=_any_value,
        code="""
import pickle
class Bomb:
    def __reduce__(self): return (open, (HOST["pwned"], "w"))
    def __repr__(self): return repr(pickle.dumps(Bomb()))
print(pickle.dumps(Bomb()))
Bomb()
""",
    ),
    Attack(
        name="error-that-hangs",
        title="raise an exception whose text never ends",
        held_by="deadline, held by the host",
        ends=("timeout",),
        timeout_s=0.5,
        code="""
class Endless(Exception):
    def __str__(self):
        while True: pass
raise Endless
""",
    ),
    Attack(
        name="error-that-fails",
        title="raise an exception whose text, type and chain raise again",
        held_by="whatever a cell raises is a result",
        ends=("error", "crash"),
        play=_any_value,
        code="""
class Meta(type):
    def __repr__(cls): raise SystemExit(0)
    __str__ = __repr__
class Bad(BaseException, metaclass=Meta):
    def __str__(self): raise self
    __repr__ = __str__
    __notes__ = property(lambda self: 1 / 0)
error = Bad()
error.__cause__ = error.__context__ = Bad()
raise error
""",
    ),
    Attack(
        name="huge-error",
        title="raise an exception with a text of 50 million characters and 10 000 causes",
        held_by="result clipped inside, cap on a frame outside",
        ends=("error", "oom", "timeout", "crash"),
        timeout_s=4,
        play=_any_value,
        code="""
chain = None
for n in range(10_000):
    error = ValueError(n); error.__cause__ = chain; chain = error
error = ValueError("x" * 50_000_000); error.__cause__ = chain
raise error
""",
    ),
    Attack(
        name="result-that-forks",
        title="answer with an object whose repr forks: two processes want to reply",
        held_by="a nonce is good for one reply",
        ends=("ok", "violation", "crash"),
        play=_any_value,
        code="""
class Twice:
    def __repr__(self): os.fork(); return "x"
Twice()
""",
    ),
    Attack(
        name="deep-recursion",
        title="recurse until the C stack is gone",
        held_by="the interpreter is a process of its own",
        ends=("crash", "oom", "error"),
        # A busy machine takes long to build a million lists and to end the interpreter.
        timeout_s=16.0,
        play=_any_value,
        code="""
import sys
sys.setrecursionlimit(10**9)
nest = []
for _ in range(10**6): nest = [nest]
repr(nest)
""",
    ),
    Attack(
        name="timers-left-behind",
        title="leave signal handlers and timers that fire between cells",
        held_by="the interpreter is a process of its own",
        play=_steps,
        ends=("crash", "violation"),
        code="""
import signal
def strike(*_): raise SystemExit(0)
for number in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGCHLD):
    signal.signal(number, strike)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
through
""",
    ),
    Attack(
        name="last-words",
        title="register work for the end: atexit, threads that are waited for, finalizers",
        held_by="an end is a SIGKILL",
        play=_any_value,
        code="""
import atexit, threading, time
@atexit.register
def hang():
    while True: time.sleep(1)
threading.Thread(target=hang, daemon=False).start()
class Last:
    def __del__(self): hang()
last = Last()
""",
    ),
)


async def _never_read(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    await session.exec(arena.program(attack.code))
    await asyncio.sleep(0.5)
    asked = asyncio.create_task(session.exec("#" * 2**23, timeout_s=2))
    answered = await arena.canary.exec("secret")
    first = asked.done()
    result: ExecResult = await asked
    found = [] if result.status in ("timeout", "ok", "oom") else [brief(result)]
    if first or not answered.ok:
        found.append("the canary waited for the session that does not read")
    return [*found, *await in_step(session, "after")]


async def _nasty(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    result = await session.exec(arena.program(attack.code))
    texts = (result.stdout, result.stderr, result.value or "")
    for text in texts:
        text.encode()
    found = [] if result.ok and "�" in result.stdout else [brief(result)]
    return [*found, *await in_step(session, "after", spoiled=0)]
