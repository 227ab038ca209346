"""The README as a package index shows it, which serves no file of the repository beside it."""

import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
SOURCE = "Source"


def link_readme(text: str, source: str | None, version: str) -> str:
    """Return the text with links to files of the tag `v{version}` below `source`.

    Without a source, an image is left out and a link is its words alone: on a package index they
    would be broken.
    """

    def replace(match: re.Match[str]) -> str:
        mark, words, path = match.groups()
        if source is None:
            return "" if mark else words
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({source.rstrip('/')}/{kind}/v{version}/{path})"

    return _LINK.sub(replace, text)


class ReadmeHook(MetadataHookInterface):
    """Writes the long description from README.md and `project.urls.Source`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the readme."""
        with open(f"{self.root}/README.md", encoding="utf-8") as file:
            text = file.read()
        source = metadata.get("urls", {}).get(SOURCE)
        linked = link_readme(text, source, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": linked}
