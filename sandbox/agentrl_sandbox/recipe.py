"""Recipes of the images for containers, and their names."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.sandbox import SandboxSettings
from agentrl_sandbox.image_kind import Kind
from agentrl_sandbox.launch.engine import ContainerImage

DESKTOP = (
    *("at-spi2-core", "dbus-daemon", "fonts-dejavu-core", "gir1.2-gtk-3.0", "jwm"),
    *("python3-gi", "python3-xlib", "x11-xkb-utils", "xvfb"),
)
"""Debian's packages of an empty desktop."""
PROGRAMS = (
    *("chromium", "mousepad", "galculator", "gnumeric", "thunar", "lxterminal", "xterm", "yad"),
)
"""Those of the programs on it, each with a command of the same name."""
DEBIAN = "bookworm"
BASE = f"agentrl-debian:{DEBIAN}"
"""Debian image that `bootstrap` makes, and other images are built on."""


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """An image that `agentrl image build` makes."""

    kind: Kind
    setting: str
    tag: str
    slim: str
    """The image of a registry that is its base, unless Debian is bootstrapped."""
    packages: tuple[str, ...] = ()

    def image(self, tag: str) -> ContainerImage:
        """Return it under a name, for those who look for it."""
        return ContainerImage(self.setting, tag, "" if self.kind == "sandbox" else self.kind)


RECIPES: Mapping[Kind, ImageRecipe] = {
    "sandbox": ImageRecipe("sandbox", "sandbox.image", SandboxSettings().image, "python:3.11-slim"),
    "desktop": ImageRecipe(
        *("desktop", "desktop.image", "agentrl-desktop", f"debian:{DEBIAN}-slim"),
        packages=(*DESKTOP, *PROGRAMS),
    ),
}
