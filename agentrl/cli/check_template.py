"""`agentrl check-template`."""

from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.console import out
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_template(
    tokenizer: Annotated[
        str, typer.Argument(metavar="FOLDER|NAME", help="Tokenizer folder, GGUF file, or hub name.")
    ],
    *,
    template: Annotated[
        str | None,
        typer.Option(help="Name of a template shipped with agentrl, or path of a Jinja file."),
    ] = None,
    dialect: Annotated[
        str, typer.Option(help="Tool-call dialect: hermes, llama3, or auto.")
    ] = "auto",
) -> None:
    """Run the conformance suite on a tokenizer and its chat template."""
    from agentrl.chat.conformance import check_template as check

    verdict = check(_load(tokenizer), template=template, dialect=dialect)
    out.print(verdict.table())
    if not verdict.ok:
        raise typer.Exit(1)


def _load(name: str) -> "PreTrainedTokenizerBase":
    from agentrl.models.place import policy_place
    from agentrl.run.preflight import check_policy

    try:
        if problem := check_policy(name):
            raise ConfigError(problem)
        from agentrl.models.folders import load_tokenizer

        return load_tokenizer(policy_place(name))
    except ConfigError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ConfigError(
            f"{name!r} has no tokenizer that can be loaded ({reason}); give a folder that contains "
            "tokenizer.json, a GGUF file, a name listed by agentrl model list, or a hub name"
        ) from error
