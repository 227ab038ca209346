"""The root that programs of this machine get, as steps: one description, whoever carries it out.

`bubblewrap_words` says them to bubblewrap, and `agentrl_sandbox.inside.root` to the kernel.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl_sandbox.inside.container import DEVICES, LINKS
from agentrl_sandbox.inside.root import Kind, RootStep
from agentrl_sandbox.visible_files import find_covered_paths, usr_directories

ARCHIVE = "/run/agentrl.zip"
FILES: Mapping[str, bytes] = {
    "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
    "/etc/passwd": b"agent:x:1000:1000::/home/agent:/bin/bash\n",
    "/etc/group": b"agent:x:1000:\n",
    "/etc/nsswitch.conf": b"hosts: files\n",
}
"""Files that programs look up, with nothing of this machine in them."""
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
_ABOVE = ("/usr", "/usr/local")
_ETC = ("/etc/fonts", "/etc/ld.so.cache", "/etc/localtime")
_BUBBLEWRAP: Mapping[Kind, str] = {
    "directory": "--perms 0755 --dir {path}",
    "link": "--symlink {source} {path}",
    "bind": "--ro-bind {source} {path}",
    "bind-if-there": "--ro-bind-try {source} {path}",
    "device": "--dev-bind {source} {path}",
    "proc": "--proc {path}",
    "memory": "--tmpfs {path}",
    "empty": "--tmpfs {path} --remount-ro {path}",
    "blank": "--ro-bind /dev/null {path}",
    "data": "--perms 0444 --ro-bind-data {fd} {path}",
    "seal": "--remount-ro {path}",
}


def system_steps(
    files: Sequence[str], shown: Sequence[tuple[str, str]], *, system_packages: bool
) -> list[RootStep]:
    """Return the steps that show the system's programs, some of its files, and more; read-only.

    `files` may be missing; `shown` are paths outside and where they are inside. For
    `system_packages` see `find_covered_paths`: what it names is there, and empty.
    """
    steps = [RootStep("directory", path) for path in _ABOVE]
    for path in (*map(str, usr_directories()), *_SYSTEM):
        if os.path.islink(path):
            steps.append(RootStep("link", path, os.readlink(path)))
        elif os.path.isdir(path):
            steps.append(RootStep("bind", path, path))
    steps += [RootStep("bind-if-there", path, path) for path in files]
    steps += [RootStep("bind", target, source) for source, target in shown]
    bound = [target for _, target in shown]
    for path in find_covered_paths(bound, system_packages=system_packages):
        steps.append(RootStep("empty" if os.path.isdir(path) else "blank", path))
    return steps


def session_steps(shown: Sequence[tuple[str, str]], home: str) -> list[RootStep]:
    """Return the steps to the root of a supervisor: read-only, with nothing of the host's in it.

    `shown` are paths outside and where they are inside, beside the system's programs; at `home`
    there is an empty directory.
    """
    # Else some that are made on the way down to a file are for one user alone.
    above = parents([*_ETC, *FILES, ARCHIVE, home, *(target for _, target in shown)])
    steps = [RootStep("directory", path) for path in above]
    steps += system_steps(_ETC, shown, system_packages=False)
    steps += [RootStep("proc", "/proc"), RootStep("memory", "/dev")]
    # One by one: bubblewrap's --dev would add a second user namespace and take our capabilities.
    steps += [RootStep("device", f"/dev/{name}", f"/dev/{name}") for name in DEVICES]
    steps += [RootStep("link", f"/dev/{name}", target) for name, target in LINKS.items()]
    steps.append(RootStep("directory", home))
    steps += [RootStep("data", path) for path in (*FILES, ARCHIVE)]
    return [*steps, RootStep("seal", "/dev"), RootStep("seal", "/")]


def parents(paths: Sequence[str]) -> list[str]:
    """Return the directories above, each after those above it."""
    above = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(above - {"/"})


def bubblewrap_words(steps: Sequence[RootStep], fds: Mapping[str, int] | None = None) -> list[str]:
    """Return the options that have bubblewrap take these steps.

    `fds` are descriptors with the bytes of files, by path.
    """
    return [
        word.format(path=step.path, source=step.source, fd=(fds or {}).get(step.path))
        for step in steps
        for word in _BUBBLEWRAP[step.kind].split()
    ]
