"""TRL's own virtual environment, made when it is not there."""

import subprocess
import sys
from pathlib import Path

VERSIONS = (
    "torch==2.13.0",
    "transformers==5.23.0",
    "trl==1.16.0",
    "datasets==5.2.0",
    "accelerate==1.15.0",
)
"""Torch first and alone: what it brings along is decided before anything else asks for it."""
INSTALL_S = 1800.0
TEMPLATE = "trl/chat_templates/qwen2_5.jinja"
"""One that TRL knows to be able to call tools, and that agentrl reads, too."""


def peer_python(folder: Path) -> Path:
    """Return the interpreter of the environment in `folder`, which is made or renewed first."""
    python, stamp = folder / "bin" / "python", folder / "versions.txt"
    wanted = "\n".join(VERSIONS)
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=INSTALL_S)
        for chosen in (VERSIONS[:1], VERSIONS):
            command = [python, "-m", "pip", "install", "--quiet", *chosen]
            subprocess.run(command, check=True, timeout=INSTALL_S)
        stamp.write_text(wanted)
    return python


def chat_template(folder: Path) -> str:
    """Return the template of the environment in `folder` that both contenders use."""
    (path,) = folder.glob(f"lib/python*/site-packages/{TEMPLATE}")
    return path.read_text()
