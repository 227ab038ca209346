"""`agentrl check-template`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from agentrl.cli.arguments import JsonFlag
from agentrl.cli.console import show_json, show_table
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
    renderer: Annotated[
        str | None,
        typer.Option(help="Renderer of the package renderers, as policy.renderer."),
    ] = None,
    dialect: Annotated[
        str, typer.Option(help="Tool-call dialect: auto, one of docs/chat.md, or module:NAME.")
    ] = "auto",
    kwargs: Annotated[
        str,
        typer.Option(help="Variables of the template as JSON, as policy.chat_template_kwargs."),
    ] = "{}",
    earlier_turns: Annotated[
        Literal["template", "sampled"], typer.Option(help="As policy.earlier_turns.")
    ] = "template",
    as_json: JsonFlag = False,
) -> None:
    """Run the conformance suite on a tokenizer and its chat template."""
    from agentrl.chat.conformance import check_template as check

    verdict = check(
        _load(tokenizer),
        template=template,
        dialect=dialect,
        options=_read_options(kwargs),
        earlier_turns=earlier_turns,
        renderer=renderer,
    )
    if as_json:
        show_json(verdict)
    else:
        show_table(
            ("check", "", "what was seen"),
            [(row.name, "pass" if row.ok else "FAIL", row.why) for row in verdict.rows],
            title=verdict.subject,
            styles={"pass": "green", "FAIL": "red"},
        )
    if not verdict.ok:
        raise typer.Exit(1)


def _read_options(kwargs: str) -> dict[str, Any]:
    from agentrl.runtime.json_limits import JsonLimitError, read_json

    try:
        options = read_json(kwargs)
    except JsonLimitError as error:
        raise ConfigError(f"--kwargs is {kwargs[:80]!r}: {error}") from error
    if not isinstance(options, dict):
        raise ConfigError(
            f"--kwargs is {kwargs[:80]!r}, which is not a JSON object; write "
            "'{\"enable_thinking\": false}'"
        )
    return cast("dict[str, Any]", options)


def _load(name: str) -> "PreTrainedTokenizerBase":
    from agentrl.models.place import policy_place
    from agentrl.run.preflight import check_policy

    try:
        if problem := check_policy(name):
            raise ConfigError(problem)
        from agentrl.models.folders import load_tokenizer

        return load_tokenizer(policy_place(name))
    except ConfigError as error:
        cause = error.__cause__
        reason = str(cause or error).strip().partition("\n")[0]
        if cause is not None and not isinstance(cause, OSError):
            reason = f"its files are damaged or missing, {type(cause).__name__}: {reason}"
        raise ConfigError(
            f"{name!r} has no tokenizer that can be loaded ({reason}); give a folder that contains "
            "tokenizer.json, a GGUF file, a name listed by agentrl model list, or a hub name"
        ) from error
