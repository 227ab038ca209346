"""The archive that is shipped into the isolation: `agentrl_sandbox.inside` and a main, in one zip.

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


@cache
def bundle(main: str = "supervisor", *, portable: bool = False) -> bytes:
    """Return the archive, which runs `main` of a module; `portable` for any Python since 3.11."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        text = f"from agentrl_sandbox.inside.{main} import main\n\nmain()\n"
        archive.writestr("__main__.py", text)
        archive.writestr("agentrl_sandbox/__init__.py", "")
        for source in (files("agentrl_sandbox") / "inside").iterdir():
            if source.name.endswith(".py"):
                name = f"agentrl_sandbox/inside/{source.name}"
                archive.writestr(f"{name}c", _compiled(name, source.read_bytes()))
                if portable:
                    archive.writestr(name, source.read_bytes())
    return buffer.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """Return a module compiled for the interpreter that runs us."""
    code = compile(source, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + _PYC_UNCHECKED + marshal.dumps(code)
