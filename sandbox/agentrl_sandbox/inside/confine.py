"""Privileges that a process gives up before it runs other people's code."""

import contextlib
import resource
from collections.abc import Mapping

from agentrl_sandbox.inside import kernel, landlock, seccomp, syscall_listener
from agentrl_sandbox.inside.quota import SessionLimits

ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONUTF8": "1",
}
"""All that a session's programs see of an environment, beside HOME and TMPDIR."""
_WRITABLE = ("/home", "/dev", "/proc")
"""Directories below which may be written, as far as they exist and their owner permits. A session's
directory is mounted below /home, and a copy's is mounted over it later: so the grant is on what is
above both.
"""

SIGNALS_MAX = 256
"""Signals queued and timers made by a session. They count for the user of the pool, too, who gets
as many as this machine gives a user: tens of thousands."""
_OOM_SCORE = "900"
"""When memory runs out, sessions go before keepers and supervisors, and those before the trainer.
What a session starts can bring itself down to what keepers have."""


def become_the_user(confinement: SessionLimits) -> None:
    """Stop being the keeper's user, where there is another one."""
    if confinement.user_id >= 0:
        kernel.become(confinement.user_id)


def go_first() -> None:
    """Be among the first to be killed when memory runs out. The process must be dumpable."""
    # Refused where we are to go even earlier.
    with contextlib.suppress(PermissionError):
        kernel.write_self("oom_score_adj", _OOM_SCORE)


def limit(confinement: SessionLimits) -> None:
    """Set the resource limits, none above what is set already."""
    cpu_s = round(confinement.cpu_s)
    pairs = {
        resource.RLIMIT_AS: (confinement.memory_bytes, confinement.memory_bytes),
        resource.RLIMIT_NOFILE: (confinement.open_files, confinement.open_files),
        resource.RLIMIT_FSIZE: (confinement.file_bytes, confinement.file_bytes),
        # One second between the signal that can be caught and the one that cannot.
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_CORE: (0, 0),
    }
    if confinement.isolated:
        pairs[resource.RLIMIT_SIGPENDING] = (SIGNALS_MAX, SIGNALS_MAX)
    if confinement.processes >= 0:
        pairs[resource.RLIMIT_NPROC] = (confinement.processes, confinement.processes_max)
    for what, (soft, top) in pairs.items():
        _, current = resource.getrlimit(what)
        if current != resource.RLIM_INFINITY:
            soft, top = min(soft, current), min(top, current)
        resource.setrlimit(what, (soft, top))


def limit_processes(count: int) -> None:
    """Set how many processes there may be from now on, -1 for no change."""
    if count >= 0:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (count, hard))


def forbid(*, listen: bool = False) -> int | None:
    """Give up every capability, other places and processes, and calls deep into the kernel.

    With `listen` the descriptor of the filter's listener is returned, where the kernel has it.
    """
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    landlock.enter(("/",), _WRITABLE)
    program = seccomp.build(notify_unshare=listen)
    if program is None:
        return None
    if listen and syscall_listener.is_available():
        return kernel.install_filter_with_listener(program)
    kernel.install_filter(program)
    return None
