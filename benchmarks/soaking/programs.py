"""Random programs that a model could write, each with what must come of it. Pure."""

import hashlib
from collections.abc import Callable
from random import Random

from agentrl.sandbox import Limits
from benchmarks.soaking.model import PREFIX, Cell, State

LIMITS = Limits(
    wall_s=60.0,
    cpu_s=120.0,
    memory_bytes=192 * 2**20,
    processes=16,
    file_bytes=4 * 2**20,
    disk_bytes=16 * 2**20,
    files=512,
    output_bytes=4096,
)
"""Of the soak's sessions: small, and with time enough for a machine that is busy."""
DAEMONS_MAX = 3
"""Of one session at once: they count towards `Limits.processes`."""
SLEEP_S = 86_399
"""What processes sleep that nobody waits for."""
FAMILY_MAX = 7
"""Sessions of one family, and one to spare. A session may hold its own share of processes and, as
the kernel counts them, the shares of its copies that they do not use."""
_PATHS = ("a", "b", "c.txt", "d/a", "d/e/b")
_BYTES_MAX = 30_000

Maker = Callable[[Random, State, str], Cell]


def path(rng: Random) -> str:
    """Return where a file is to be."""
    return rng.choice(_PATHS)


def data(rng: Random) -> bytes:
    """Return what is to be in it."""
    return rng.randbytes(rng.choice((0, 1, 100, _BYTES_MAX)))


def sets(rng: Random, _: State, token: str) -> Cell:
    """Bind a name, and echo it."""
    name, number = PREFIX + rng.choice("abcdef"), rng.randrange(10**6)
    code = f"{name} = {number}\nprint('said')\n{name}"
    return Cell(
        kind="name", token=token, code=code, stdout="said\n", value=f"{number}", sets={name: number}
    )


def writes(rng: Random, _: State, token: str) -> Cell:
    """Write a file."""
    where, what = path(rng), data(rng)
    code = f"""
import os
os.makedirs(os.path.dirname({where!r}) or '.', exist_ok=True)
with open({where!r}, 'wb') as file: file.write(bytes.fromhex({what.hex()!r}))
"""
    return Cell(kind="file", token=token, code=code, writes={where: what})


def reads(rng: Random, state: State, token: str) -> Cell:
    """Read a file that is there."""
    if not state.files:
        return writes(rng, state, token)
    where = rng.choice(sorted(state.files))
    code = f"import hashlib\nhashlib.sha1(open({where!r}, 'rb').read()).hexdigest()"
    value = repr(hashlib.sha1(state.files[where]).hexdigest())
    return Cell(kind="file", token=token, code=code, value=value)


def raises(rng: Random, _: State, token: str) -> Cell:
    """Bind a name and raise: the name stays."""
    name, number = PREFIX + rng.choice("abcdef"), rng.randrange(10**6)
    what = rng.choice(("ValueError('{}')", "SystemExit('{}')", "KeyboardInterrupt('{}')"))
    code = f"{name} = {number}\nraise {what.format(token)}"
    return Cell(
        kind="exception",
        token=token,
        code=code,
        statuses=("error",),
        error=token,
        sets={name: number},
    )


def child(rng: Random, _: State, token: str) -> Cell:
    """Run a program from inside."""
    code = f"""
import subprocess
subprocess.run(['sh', '-c', 'echo {token}; exit 3'], capture_output=True, text=True).stdout
"""
    return Cell(kind="subprocess", token=token, code=code, value=repr(f"{token}\n"))


def daemon(rng: Random, state: State, token: str) -> Cell:
    """Leave processes behind, out of the reach of a process group."""
    if state.daemons >= DAEMONS_MAX:
        return child(rng, state, token)
    twice = f"""
import os, time
if (middle := os.fork()) == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(1, 64):
            try: os.close(fd)
            except OSError: pass
        time.sleep({SLEEP_S})
    os._exit(0)
_ = os.waitpid(middle, 0)
"""
    shell = f"""
import subprocess
_ = subprocess.run(['sh', '-c', 'setsid sleep {SLEEP_S} >/dev/null 2>&1 &'])
"""
    once = f"import subprocess\n_ = subprocess.Popen(['sleep', '{SLEEP_S}'])"
    code = rng.choice((twice, shell, once))
    return Cell(kind="daemon", token=token, code=code, daemons=1)


def threads(_: Random, state: State, token: str) -> Cell:
    """Start a thread that stays, or end the one there is."""
    if state.threads:
        code = "go.set()\nthread.join()"
        return Cell(kind="thread ends", token=token, code=code, threads=False)
    code = """
import threading
go = threading.Event()
thread = threading.Thread(target=go.wait, daemon=True)
thread.start()
"""
    return Cell(kind="thread", token=token, code=code, threads=True)


def floods(rng: Random, _: State, token: str) -> Cell:
    """Write far more than is kept."""
    stream, count = rng.choice(("stdout", "stderr")), rng.choice((100, 2_000))
    code = f"import sys\nfor _ in range({count}): print('x' * 1000, file=sys.{stream})"
    return Cell(kind="flood", token=token, code=code, floods=True)


def fork_bomb(_: Random, __: State, token: str) -> Cell:
    """Fork until the kernel says no, and clear up."""
    code = f"""
import os, signal, time
children = []
try:
    while True:
        if (child := os.fork()) == 0:
            time.sleep({SLEEP_S})
            os._exit(0)
        children.append(child)
except BlockingIOError:
    pass
for child in children:
    os.kill(child, signal.SIGKILL)
    _ = os.waitpid(child, 0)
len(children) < {LIMITS.processes * FAMILY_MAX}
"""
    return Cell(kind="fork bomb", token=token, code=code, value="True")


def stalls(rng: Random, _: State, token: str) -> Cell:
    """Never end."""
    timeout_s = rng.choice((0.05, 0.2, 0.5))
    how = rng.choice(
        (
            "while True: pass",
            f"import time\ntime.sleep({SLEEP_S})",
            "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
            "    except OSError: pass\nwhile True: signal.pause()",
            f"import subprocess\nsubprocess.run(['sh', '-c', 'sleep {SLEEP_S} & wait'])",
            f"import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep({SLEEP_S})",
        )
    )
    return Cell(
        kind="time-out",
        token=token,
        code=f"{PREFIX}lost = 1\nprint('said')\n{how}",
        statuses=("timeout",),
        lost=True,
        timeout_s=timeout_s,
        error=f"stopped after {timeout_s:g} s",
        stdout="said\n",
        cut_short=True,
    )


def crashes(rng: Random, _: State, token: str) -> Cell:
    """Take the interpreter down."""
    how, error = rng.choice(
        (
            ("os._exit(0)", "exit status 0"),
            ("os._exit(3)", "exit status 3"),
            ("os.kill(os.getpid(), 9)", "SIGKILL"),
            ("os.abort()", "SIGABRT"),
            ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        )
    )
    code = f"import os\n{PREFIX}lost = 1\nprint('said')\n{how}"
    return Cell(
        kind="crash",
        token=token,
        code=code,
        statuses=("crash",),
        lost=True,
        error=error,
        stdout="said\n",
    )


def bombs(rng: Random, _: State, token: str) -> Cell:
    """Take more memory than there is."""
    how = rng.choice(
        (
            "bytearray(10**10)",
            "kept = []\nwhile True: kept.append(bytearray(2**24))",
            "kept = {}\nwhile True: kept[len(kept)] = 'x' * 10**6 + str(len(kept))",
        )
    )
    code = f"{PREFIX}lost = 1\nprint('said')\n{how}"
    return Cell(
        kind="memory bomb",
        token=token,
        code=code,
        statuses=("oom",),
        lost=True,
        stdout="said\n",
    )


CELLS: tuple[tuple[Maker, float], ...] = (
    (sets, 6),
    (writes, 2),
    (reads, 2),
    (raises, 1.5),
    (child, 1.5),
    (daemon, 1),
    (threads, 1),
    (floods, 1),
    (fork_bomb, 0.3),
    (stalls, 0.5),
    (crashes, 1.5),
    (bombs, 0.5),
)
"""What cells there are, and how often."""


def random_cell(rng: Random, state: State, token: str) -> Cell:
    """Return the next cell of a session."""
    makers, weights = zip(*CELLS, strict=True)
    return rng.choices(makers, weights)[0](rng, state, token)


def look(token: str) -> Cell:
    """Return the cell that echoes all names the model keeps account of."""
    code = f"{{n: v for n, v in sorted(globals().items()) if n.startswith({PREFIX!r})}}"
    return Cell(kind="look", token=token, code=code)
