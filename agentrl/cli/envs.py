"""`agentrl envs`."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.arguments import JsonFlag
from agentrl.cli.console import err, show_json, show_table, show_text
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.registry import EnvKind, EnvSpec


def complete_family(incomplete: str) -> list[str]:
    """Return the families that begin with what was typed, or their ids once one is complete."""
    from agentrl.registry import registry

    if "/" in incomplete:
        return [id for id in registry if id.startswith(incomplete)]
    families = {family_of(id) for id in registry}
    return sorted(family for family in families if family.startswith(incomplete))


def envs(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FAMILY|ID",
            autocompletion=complete_family,
            help="Family whose environments to list, or environment to describe.",
        ),
    ] = "",
    *,
    search: Annotated[
        str,
        typer.Option(
            help="List the environments whose id, description, or entry point contains this text."
        ),
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """List the families of environments, the environments of one, or what one is."""
    from agentrl.registry import kinds, registry, spec

    if ":" in name:  # of a module, or of another package
        specs = [spec(name)]
    else:
        specs = [one for one in registry.values() if is_wanted(one, name, search)]
    if name and not search and not specs:
        raise ConfigError(_describe_unknown(name, list(registry)))
    if as_json:
        show_json([_spec_json(one) for one in specs])
    elif not specs:
        show_text(f"none of the {len(registry)} environments matches {search!r}")
    elif ":" in name or (name in registry and not search):
        show_text(describe(specs[0]))
    elif name or search:
        show_table(("id", "what it is"), [(one.id, one.description) for one in specs])
    else:
        _show_families(specs, list(kinds().values()))
    if not specs:
        raise typer.Exit(1)


def family_of(id: str) -> str:
    """Return the family of an environment: what stands before the slash of its id."""
    return id.partition("/")[0]


def is_wanted(spec: "EnvSpec", name: str, search: str) -> bool:
    """Return whether an environment is, or is of the family, `name`, and contains `search`."""
    is_named = name in ("", spec.id, family_of(spec.id))
    return is_named and search.lower() in f"{spec.id} {spec.description} {spec.entry_point}".lower()


def describe(spec: "EnvSpec") -> str:
    """Return the facts about an environment, a line each."""
    facts = {
        "id": spec.id,
        "what it is": spec.description,
        "entry point": spec.entry_point,
        **{f"env.kwargs.{name}": str(value) for name, value in spec.kwargs.items()},
        "needs": ", ".join(spec.needs),
    }
    width = max(map(len, facts))
    return "\n".join(f"{name:{width}}  {text}" for name, text in facts.items() if text)


def _spec_json(spec: "EnvSpec") -> dict[str, object]:
    return {
        "id": spec.id,
        "family": family_of(spec.id),
        "description": spec.description,
        "entry_point": spec.entry_point,
        "kwargs": spec.kwargs,
        "needs": spec.needs,
    }


def _show_families(specs: "Sequence[EnvSpec]", kinds: "Sequence[EnvKind]") -> None:
    families: dict[str, list[EnvSpec]] = {}
    for spec in specs:
        families.setdefault(family_of(spec.id), []).append(spec)
    rows = [(name, str(len(members)), _summarise(members)) for name, members in families.items()]
    show_table(("family", "environments", "what they are"), rows)
    show_text()
    kind_rows = [(f"{kind.name}:...", kind.description) for kind in kinds]
    show_table(("from elsewhere", "what it is"), kind_rows)
    show_text(
        "agentrl envs FAMILY lists the environments of one, agentrl envs ID describes it", err
    )


def _summarise(members: "Sequence[EnvSpec]") -> str:
    """Return the description of the first environment of a family, after its name if it is one of
    several."""
    first = members[0]
    name = first.id.partition("/")[2]
    return first.description if len(members) == 1 else f"such as {name}: {first.description}"


def _describe_unknown(name: str, ids: Sequence[str]) -> str:
    families = sorted({family_of(id) for id in ids})
    near = get_close_matches(name, [*families, *ids], n=1)
    hint = f"did you mean {near[0]}?" if near else f"the families are {', '.join(families)}."
    return (
        f"{name} is neither a family nor the id of an environment; {hint} To look for a text, "
        "use --search TEXT"
    )
