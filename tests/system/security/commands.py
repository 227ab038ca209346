"""Attacks by a command that is run beside the interpreter."""

import asyncio

from agentrl.sandbox import RunResult
from agentrl_sandbox import SandboxSession
from tests.system.security.arena import LIMITS, SECRET, VARIABLE, Arena
from tests.system.security.attack import Attack, Gap

_SH = "/bin/sh"


async def _run(
    session: SandboxSession, attack: Attack, *, timeout_s: float | None = None
) -> RunResult:
    return await session.run([_SH, "-c", attack.code], timeout_s=timeout_s)


async def _deadline(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    await session.exec("kept = 1")
    for timeout_s in (0.7, 15):  # a slow machine has the second try
        result = await _run(session, attack, timeout_s=timeout_s)
        if "beat" in {entry.name for entry in await session.entries()}:
            break
    found = [] if result.status == "timeout" else [f"the command ended as {result}"]
    size = len(await session.read("beat"))
    await asyncio.sleep(0.3)
    if not size or len(await session.read("beat")) != size:
        found.append("a process of the command survived its deadline")
    if (await session.exec("kept")).value != "1":
        found.append("the interpreter did not live on")
    return found


async def _bounded(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    for timeout_s in (1.5, 15):
        result = await _run(session, attack, timeout_s=timeout_s)
        kept = max(len(result.stdout), len(result.stderr))
        if kept:
            break
    if result.truncated and 0 < kept < 2 * LIMITS.output_bytes:
        return []
    return [f"{kept} characters kept, truncated={result.truncated}, status {result.status}"]


async def _bomb(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    result = await _run(session, attack, timeout_s=3)
    return ["400 processes were started"] if "all of them" in result.stdout else []


async def _clean(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    result = await _run(session, attack)
    found = [] if result.ok else [f"{result}"]
    text = result.stdout
    found += ["the host's environment"] if SECRET in text or VARIABLE in text else []
    fds = [line for line in text.splitlines() if line.startswith("fd ")]
    extra = [line for line in fds if line.split()[1] not in ("0", "1", "2", "3", "10")]
    found += [f"descriptors {extra}"] if extra or not fds else []
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"):
        found += [] if line in text else [f"not {line!r}"]
    return found


async def _arguments(arena: Arena, session: SandboxSession, attack: Attack) -> list[str]:
    """Arguments are arguments: no shell, no NUL, no directory outside."""
    found: list[str] = []
    echoed = await session.run(["/bin/echo", "$(id)", ";", "`id`", "\x1b", "-e"])
    if echoed.stdout != "$(id) ; `id` \x1b -e\n":
        found.append(f"arguments changed on the way: {echoed.stdout!r}")
    await session.exec(arena.program(attack.code))
    for cwd in ("..", "/", "away", "missing", "plain", "a/../.."):
        try:
            result = await session.run([_SH, "-c", "pwd"], cwd=cwd)
        except OSError:
            continue
        if result.ok:
            found.append(f"a command ran in {cwd}: {result.stdout.strip()}")
    for argv in ([], ["missing-program"], ["/"], ["plain"]):
        try:
            result = await session.run(argv)
        except (OSError, ValueError):
            continue
        if result.ok:
            found.append(f"{argv} ran")
    return found


ATTACKS = (
    Attack(
        name="command-outlives-deadline",
        title="a command that ignores signals and leaves a daemon behind",
        held_by="its processes are killed at the deadline, the interpreter is not",
        play=_deadline,
        code="""trap '' TERM INT HUP
(setsid sh -c 'trap "" TERM HUP; while :; do echo x >> beat; sleep 0.02; done' &) &
while :; do :; done""",
    ),
    Attack(
        name="command-floods",
        title="a command that writes to stdout and stderr without end",
        held_by="bounded buffers, output cut in the middle",
        play=_bounded,
        code="while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; echo y >&2; done",
    ),
    Attack(
        name="command-fork-bomb",
        title="a command that starts 400 processes",
        held_by="process limit of the session",
        play=_bomb,
        code="n=0; while [ $n -lt 400 ]; do sleep 20 & n=$((n+1)); done; echo all of them; sleep 9",
    ),
    Attack(
        name="command-environment",
        title="a command that looks for secrets, descriptors and rights",
        held_by="empty environment, three descriptors, the session's own limits",
        play=_clean,
        code="env; for f in /proc/self/fd/*; do echo fd ${f##*/}; done; cat /proc/self/status",
        gaps={"process": Gap("a command has the rights of the trainer's user")},
    ),
    Attack(
        name="command-arguments",
        title="arguments that look like shell, and directories that lead outside",
        held_by="no shell, every part of a path is opened on its own",
        play=_arguments,
        code="os.symlink('/', 'away'); open('plain', 'w').close()",
    ),
)
