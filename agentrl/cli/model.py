"""`agentrl model get` and `agentrl model list`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonFlag
from agentrl.cli.console import err, show_json, show_table, show_text
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.models.catalogue import PackagedModel

app = typer.Typer(help="Get and list models distributed as Python packages.", no_args_is_help=True)


@app.callback()
def model() -> None:
    """Get and list models distributed as Python packages."""


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="Model name, as listed by `agentrl model list`.")],
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=(
                "Folder to create; by default in the user cache, where policy.path finds it by "
                "NAME."
            ),
        ),
    ] = None,
) -> None:
    """Create a Hugging Face model folder from an installed package."""
    from difflib import get_close_matches

    from agentrl.models.catalogue import MODELS
    from agentrl.models.making import make_folder

    if (model := MODELS.get(name)) is None:
        near = get_close_matches(name, MODELS, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"the models are {', '.join(MODELS)}"
        raise ConfigError(f"there is no model {name!r}; {meant}")
    folder = make_folder(model, to, say=lambda text: show_text(text, err))
    show_text(f"{name} is in {folder}; policy.path={name if to is None else folder}")


@app.command("list")
def show(*, as_json: JsonFlag = False) -> None:
    """List the packaged models and where each one is."""
    from agentrl.models.catalogue import MODELS, models_folder

    if as_json:
        places = {name: models_folder() / name for name in MODELS}
        show_json(
            [
                {
                    "name": model.name,
                    "license": model.license,
                    "folder": place if (place := places[model.name]).is_dir() else None,
                    "get_it": None if place.is_dir() else _standing(model),
                }
                for model in MODELS.values()
            ]
        )
        return
    rows = [(model.name, model.license, _standing(model)) for model in MODELS.values()]
    show_table(("name", "license", "location, or how to get it"), rows)


def _standing(model: "PackagedModel") -> str:
    """Return the folder of a model, or the command to run next."""
    from agentrl.models.catalogue import models_folder

    if (folder := models_folder() / model.name).is_dir():
        return str(folder)
    try:
        model.find_installed_file()
    except ConfigError:
        return model.install
    return f"agentrl model get {model.name}"
