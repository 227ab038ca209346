"""The archive that is shipped into the isolation: `agentrl_sandbox.inside` and a main, in one zip.

The interpreter inside runs the archive in isolated mode, so nothing of the host's paths or
environment takes part, and the sandbox needs no view of where agentrl is installed.
"""

import importlib.util
import io
import marshal
import zipfile
from functools import cache
from importlib.resources import files

_PYC_WITHOUT_SOURCE = bytes(12)
_MAIN = "from agentrl_sandbox.inside.supervisor import main\n\nmain()\n"


@cache
def bundle() -> bytes:
    """Return the archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("__main__.py", _MAIN)
        archive.writestr("agentrl_sandbox/__init__.py", "")
        for source in (files("agentrl_sandbox") / "inside").iterdir():
            if source.name.endswith(".py"):
                name = f"agentrl_sandbox/inside/{source.name}"
                archive.writestr(f"{name}c", _compiled(name, source.read_bytes()))
    return buffer.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """Return a compiled module: the interpreter inside is the one that runs us."""
    code = compile(source, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + _PYC_WITHOUT_SOURCE + marshal.dumps(code)
