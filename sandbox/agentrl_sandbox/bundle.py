"""The archive that is shipped into the isolation: `agentrl_sandbox.inside` and a main, in one zip.

What makes the isolation is an archive as well, with the modules it needs beside these.

The interpreter inside runs the archive in isolated mode, so nothing of the host's paths or
environment takes part, and the sandbox needs no view of where agentrl is installed. Modules come
compiled, which saves a start 70 ms; a container's interpreter may be of another
version than ours, ignores what it cannot read, and compiles the source that lies beside it.
"""

import importlib.util
import io
import marshal
import zipfile
from functools import cache
from importlib.resources import files

# Flags that say: never compare with the source. It may be absent, and has no date of its own.
_PYC_UNCHECKED = (1).to_bytes(4, "little") + bytes(8)


_ISOLATION = ("enter.py", "isolate.py")


def bundle(main: str = "fork_server", *, portable: bool = False) -> bytes:
    """Return the archive, which runs `main` of a module; `portable` for any Python since 3.11."""
    return _archive(f"agentrl_sandbox.inside.{main}", (), portable=portable)


def bundle_isolation() -> bytes:
    """Return the archive that makes the isolation and becomes what runs inside."""
    return _archive("agentrl_sandbox.isolate", _ISOLATION, portable=False)


@cache
def _archive(main: str, beside: tuple[str, ...], *, portable: bool) -> bytes:
    package = files("agentrl_sandbox")
    modules = {name: package / name for name in beside}
    for source in (package / "inside").iterdir():
        if source.name.endswith(".py"):
            modules[f"inside/{source.name}"] = source
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("__main__.py", f"from {main} import main\n\nmain()\n")
        archive.writestr("agentrl_sandbox/__init__.py", "")
        for path, source in modules.items():
            name = f"agentrl_sandbox/{path}"
            archive.writestr(f"{name}c", _compile_module(name, source.read_bytes()))
            if portable:
                archive.writestr(name, source.read_bytes())
    return buffer.getvalue()


def _compile_module(name: str, source: bytes) -> bytes:
    """Return a module compiled for the interpreter that runs us."""
    code = compile(source, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + _PYC_UNCHECKED + marshal.dumps(code)
