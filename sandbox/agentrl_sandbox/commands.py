"""`agentrl image`: the commands this distribution adds to agentrl's."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.console import err, show_text
from agentrl.errors import ConfigError
from agentrl_sandbox.image_kind import Base, Kind

image = typer.Typer(
    name="image", help="Build container images for sandboxes.", no_args_is_help=True
)


@image.callback()
def images() -> None:
    """Images for sandboxes in containers."""


@image.command("build")
def build_image(
    kind: Annotated[
        Kind,
        typer.Argument(
            help=(
                "Image to build. sandbox: for sandbox sessions; desktop: with the programs of "
                "gui/*."
            )
        ),
    ] = "sandbox",
    base: Annotated[
        Base,
        typer.Option(
            "--from",
            help=(
                "Base of the image. bootstrap: Debian packages, which requires root; slim: an "
                "image from a registry."
            ),
        ),
    ] = "bootstrap",
    tag: Annotated[
        str, typer.Option(help="Image tag; agentrl-sandbox or agentrl-desktop by default.")
    ] = "",
    mirror: Annotated[str, typer.Option(help="Debian mirror for bootstrap.")] = "",
    archive: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Write the root file system of bootstrap to this tar archive instead; no engine "
                "is asked."
            )
        ),
    ] = None,
) -> None:
    """Build an image into the Docker engine, or its root file system into an archive."""
    from agentrl_sandbox.image import build, build_archive
    from agentrl_sandbox.recipe import BASE, RECIPES

    if archive is not None:
        if (kind, base, tag) != ("sandbox", "bootstrap", ""):
            raise ConfigError(
                "--archive is the root file system that bootstrap makes: leave out the kind, "
                "--from and --tag"
            )
        build_archive(archive, mirror=mirror, say=lambda line: show_text(line, err))
        show_text(f'wrote {archive}; use it with rootfs: {{"{BASE}": {archive}}}')
        return
    tag = build(base, tag, kind=kind, mirror=mirror, say=lambda line: show_text(line, err))
    uses = {"sandbox": "sandbox.backend: docker", "desktop": "desktop: {backend: docker}"}
    suffix = "" if tag == RECIPES[kind].tag else f" and {RECIPES[kind].setting}: {tag}"
    show_text(f"built {tag}; use it with {uses[kind]}{suffix}")
