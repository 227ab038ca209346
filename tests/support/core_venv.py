"""A virtual environment with a wheel and its dependencies, made without a network."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


@dataclass(frozen=True, slots=True)
class WheelVenv:
    """A virtual environment in which a wheel is installed."""

    folder: Path
    distributions: tuple[Distribution, ...]
    """Dependencies of the wheel, which are links to those of the tests' own interpreter."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def agentrl(self) -> Path:
        return self.folder / "bin" / "agentrl"

    @property
    def site_packages(self) -> Path:
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        return self.folder / "lib" / name / "site-packages"


def make_wheel_venv(folder: Path, wheel: Path) -> WheelVenv:
    """Install a wheel with what it requires without an extra, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    made = WheelVenv(folder, ())
    install = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "-q"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    (metadata,) = made.site_packages.glob("agentrl_gym-*.dist-info")
    found = {each.name: each for each in find_dependencies(Distribution.at(metadata))}
    for each in found.values():
        for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            link = made.site_packages / name
            if not link.exists():  # a namespace has more than one distribution
                link.symlink_to(Path(str(each.locate_file(name))))
    return WheelVenv(folder, tuple(found.values()))


def find_dependencies(of: Distribution) -> Iterator[Distribution]:
    """Yield what a distribution requires without an extra, and what that requires."""
    for text in of.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = distribution(requirement.name)
            yield found
            yield from find_dependencies(found)
