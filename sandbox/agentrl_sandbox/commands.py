"""`agentrl image`: the commands this distribution adds to agentrl's."""

from typing import Annotated

import typer

from agentrl.cli.console import err, out
from agentrl_sandbox.image import TAG, Base, build

image = typer.Typer(name="image", help="Images for sandboxes in containers.", no_args_is_help=True)


@image.callback()
def images() -> None:
    """Images for sandboxes in containers."""


@image.command("build")
def build_image(
    base: Annotated[
        Base,
        typer.Option(
            "--from",
            help="bootstrap: from Debian's packages, as root. slim: from an image of a registry.",
        ),
    ] = "bootstrap",
    tag: Annotated[str, typer.Option(help="Its name, for sandbox.image.")] = TAG,
    mirror: Annotated[str, typer.Option(help="A mirror of Debian, for bootstrap.")] = "",
) -> None:
    """Build an image into the Docker engine."""
    build(base, tag, mirror=mirror, say=lambda line: err.print(line, markup=False))
    out.print(f"built {tag}; use it with sandbox.backend: docker", markup=False)
