"""A root file system of some of this machine's programs, for containers without an engine."""

import re
import shutil
import subprocess
from pathlib import Path

BASE = "local-root:1"
"""Name by which tests call it in a FROM."""
PROGRAMS = (
    *(
        "bash",
        "cat",
        "chmod",
        "chown",
        "chroot",
        "cmp",
        "cp",
        "cut",
        "env",
        "grep",
        "head",
        "id",
        "ln",
        "ls",
    ),
    *("mkdir", "mknod", "mount", "mv", "nohup", "printf", "rm", "seq", "setsid", "sh", "sleep"),
    *("stat", "tail", "test", "touch", "tr", "true", "unshare", "wc", "yes"),
)
_LIBRARY = re.compile(r"(/\S+) \(0x")


def make_root(folder: Path) -> str:
    """Fill a folder with programs and their libraries; return its path."""
    for name in ("etc", "root", "tmp", "usr/bin", "usr/share/words"):
        (folder / name).mkdir(parents=True)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "tmp").chmod(0o1777)
    (folder / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\nclerk:x:1000:1000::/tmp:/bin/bash\n"
    )
    (folder / "etc/group").write_text("root:x:0:\nclerk:x:1000:\n")
    (folder / "usr/share/words/one").write_text("one\n")
    for name in PROGRAMS:
        path = Path(shutil.which(name) or f"/bin/{name}")
        copy(path, folder / "usr/bin" / name)
        listing = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for library in _LIBRARY.findall(listing):
            if not (target := folder / library[1:]).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                copy(Path(library), target)
    return str(folder)


def copy(source: Path, target: Path) -> None:
    """Copy what a path leads to, with its permissions."""
    shutil.copyfile(source, target)
    target.chmod(0o755)
