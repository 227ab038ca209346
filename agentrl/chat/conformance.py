"""Checks of a template and a tokenizer for training, by name and with a verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agentrl.chat.dialects import find_dialect
from agentrl.chat.format import ChatFormat, bind_template
from agentrl.chat.format_checks import FORMAT_CHECKS, REWRITING_CHECKS
from agentrl.chat.renderer_template import RENDERER
from agentrl.chat.template import ChatTemplate, prove_within
from agentrl.chat.template_checks import TEMPLATE_CHECKS, TemplateCheckError
from agentrl.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Subject = TypeVar("Subject", ChatTemplate, ChatFormat)


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """One row of a verdict."""

    name: str
    ok: bool
    why: str
    """Reason of a failure, or the fact that was found."""


@dataclass(frozen=True, slots=True)
class ConformanceVerdict:
    """Results of the checks."""

    subject: str
    rows: tuple[TemplateCheck, ...]

    @property
    def ok(self) -> bool:
        """Return whether every check passed."""
        return all(row.ok for row in self.rows)


def check_template(
    tokenizer: "PreTrainedTokenizerBase",
    *,
    dialect: str = "auto",
    template: str | None = None,
    options: Mapping[str, Any] | None = None,
    earlier_turns: Literal["template", "sampled"] = "template",
    renderer: str | None = None,
) -> ConformanceVerdict:
    """Put a template and a tokenizer through every check; takes milliseconds.

    Raises `ConfigError` only when there is no template to check or no such dialect, and for a
    template that does not come to an end.
    """
    if dialect not in ("auto", RENDERER):
        find_dialect(dialect)
    name = renderer or template or tokenizer.name_or_path or "the policy"
    return prove_within(
        f"the chat template of {name}",
        lambda: _check(
            tokenizer,
            dialect=dialect,
            template=template,
            options=options,
            earlier_turns=earlier_turns,
            renderer=renderer,
        ),
    )


def _check(
    tokenizer: "PreTrainedTokenizerBase",
    *,
    dialect: str,
    template: str | None,
    options: Mapping[str, Any] | None,
    earlier_turns: Literal["template", "sampled"],
    renderer: str | None,
) -> ConformanceVerdict:
    bound = bind_template(tokenizer, template, options, renderer=renderer)
    try:
        chat = ChatFormat(
            tokenizer,
            dialect=dialect,
            template=template,
            options=options,
            earlier_turns=earlier_turns,
            renderer=renderer,
        )
    except ConfigError as error:
        rows = [_run(name, check, bound) for name, check in TEMPLATE_CHECKS.items()]
        rows.append(TemplateCheck("incremental rendering", False, str(error)))
        why = "not checked: there is no incremental rendering"
        rows += [TemplateCheck(name, False, why) for name in FORMAT_CHECKS]
    else:
        rewriting = REWRITING_CHECKS if chat.rewrites_turns else {}
        rows = [
            _run(name, rewriting[name], chat)
            if name in rewriting
            else _run(name, check, chat.template)
            for name, check in TEMPLATE_CHECKS.items()
        ]
        rows.append(TemplateCheck("incremental rendering", True, f"dialect {chat.dialect.name}"))
        rows += [_run(name, check, chat) for name, check in FORMAT_CHECKS.items()]
    return ConformanceVerdict(bound.name, tuple(rows))


def _run(name: str, check: Callable[[Subject], str], subject: Subject) -> TemplateCheck:
    try:
        return TemplateCheck(name, True, check(subject))
    except (TemplateCheckError, ConfigError, EnvError) as fault:
        return TemplateCheck(name, False, str(fault))
