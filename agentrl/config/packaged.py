"""The configs that come with agentrl, by name: `configs/quickstart.yaml` is `quickstart`."""

import re
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
FOLDERS = (_ROOT / "configs", _ROOT.parent / "configs")
"""Folder of an installed wheel, and of a checkout."""

_MACHINE = "Machine:"
_SENTENCE = re.compile(r".*?\.(?=\s|$)")


@dataclass(frozen=True, slots=True)
class PackagedConfig:
    """A config that comes with agentrl."""

    name: str
    file: Path

    def describe(self) -> str:
        """Return the first sentence of the comment at its top."""
        lines: list[str] = []
        for line in self.file.read_text(encoding="utf-8").split("\n"):
            if not line.startswith("#"):
                break
            lines.append(line.removeprefix("#").strip())
        text = " ".join(line for line in lines if not line.startswith(_MACHINE))
        sentence = _SENTENCE.match(text)
        return text if sentence is None else sentence[0]


def list_configs() -> list[PackagedConfig]:
    """Return every config by name, those at the top first."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        return []
    files = sorted(folder.rglob("*.yaml"), key=lambda file: (len(file.parts), file))
    return [
        PackagedConfig(file.relative_to(folder).with_suffix("").as_posix(), file) for file in files
    ]


def find_config_file(path: Path, *, folder: Path = Path()) -> Path:
    """Return the file of a packaged config's name, and any other path below `folder`.

    A file of the same name in the folder wins.
    """
    file = folder / path
    if path.suffix or path.is_absolute() or file.is_file():
        return file
    return next((each.file for each in list_configs() if each.name == path.as_posix()), file)
