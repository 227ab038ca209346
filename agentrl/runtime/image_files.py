"""Images beside an export: one file per picture, named by its content."""

from pathlib import Path

from agentrl.message import Image

FOLDER = "images"
ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_TYPES = {ending: media_type for media_type, ending in ENDINGS.items()}


class ImageFiles:
    """Writes and reads the images of one export, in `images/` of its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: set[str] = set()

    def keep(self, image: Image) -> str:
        """Write an image unless it is there, and return its path within the export."""
        name = f"{FOLDER}/{image.digest}.{ENDINGS.get(image.media_type, 'bin')}"
        if name not in self._written:
            self._written.add(name)
            file = self._folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image.data)
        return name

    def load(self, path: str, media_type: str) -> Image:
        """Return an image that `keep` wrote."""
        return Image((self._folder / FOLDER / Path(path).name).read_bytes(), media_type)
