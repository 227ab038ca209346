"""Which keys were read: the memory behind "set but never read".

Mutants seen caught: `find_unread` that does not look into lists; peeking that never ends; keys
equal to their default reported; `model_dump` that forgets inner sections.
"""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from agentrl.config.run import EnvSection, LimitsSection, RunConfig, SandboxSection
from agentrl.config.section import ConfigSection, check_all_read, find_unread, peeking
from agentrl.errors import ConfigError


class Inner(ConfigSection):
    depth: int = 1
    width: int = 1


class Red(ConfigSection):
    name: Literal["red"] = "red"
    shade: int = 0


class Blue(ConfigSection):
    name: Literal["blue"]
    tone: int = 0


class Outer(ConfigSection):
    name: str = "outer"
    mode: Literal["one", "two"] = "one"
    numbers: tuple[int, ...] = ()
    settings: dict[str, int] = Field(default_factory=dict[str, int])
    inner: Inner = Inner()
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] = Field(default_factory=dict[str, Inner])
    colour: Annotated[Red | Blue, Field(discriminator="name")] = Red()


def test_a_key_is_unread_until_it_is_read() -> None:
    config = Outer(name="x", mode="two", numbers=(1,), settings={"a": 1})
    assert find_unread(config) == ["name", "mode", "numbers", "settings"]
    assert config.numbers == (1,)
    assert config.name == "x"
    assert find_unread(config) == ["mode", "settings"]


def test_a_section_is_read_key_by_key() -> None:
    config = Outer(inner=Inner(depth=2, width=2), maybe=Inner(width=3))
    assert find_unread(config) == ["inner.depth", "inner.width", "maybe.width"]
    assert config.inner.depth == 2
    assert find_unread(config) == ["inner.width", "maybe.width"]


def test_an_optional_section_that_is_only_turned_on_must_be_looked_at() -> None:
    config = Outer(maybe=Inner())
    assert find_unread(config) == ["maybe"]
    assert config.maybe is not None
    assert find_unread(config) == []


def test_sections_in_lists_and_mappings_count() -> None:
    config = Outer(many=(Inner(), Inner(depth=5)), named={"a": Inner(width=5)})
    assert find_unread(config) == ["many.1.depth", "named.a.width"]
    assert [item.depth for item in config.many] == [1, 5]
    assert find_unread(config) == ["named.a.width"]


def test_the_name_of_a_method_is_read_by_choosing_it() -> None:
    config = Outer(colour=Blue(name="blue", tone=2))
    assert find_unread(config) == ["colour.tone"]
    assert Outer(colour=Blue(name="blue")).colour.name == "blue"
    # Nobody asked which colour it is: that is a choice without effect.
    assert find_unread(Outer(colour=Blue(name="blue"))) == ["colour"]


def test_a_key_that_repeats_its_default_needs_no_reader() -> None:
    assert find_unread(Outer(name="outer", inner=Inner(depth=1), maybe=None, settings={})) == []


def test_looking_is_not_reading() -> None:
    config = Outer(inner=Inner(depth=2))
    assert "depth=2" in repr(config)
    assert config == Outer(inner=Inner(depth=2))
    assert config != Outer(inner=Inner(depth=3))
    with peeking():
        assert config.inner.depth == 2
    assert find_unread(config) == ["inner.depth"]
    assert config.inner.depth == 2
    assert find_unread(config) == []
    assert config == Outer(inner=Inner(depth=2)), "who has read what is no part of a value"
    assert hash(Inner(depth=2)) == hash(config.inner)


def test_a_dump_reads_everything_in_it() -> None:
    config = Outer(inner=Inner(depth=2), many=(Inner(width=2),), named={"a": Inner(depth=3)})
    assert config.model_dump()["inner"] == {"depth": 2, "width": 1}
    assert find_unread(config) == []


def test_a_key_nobody_read_stops_the_run_by_name() -> None:
    limits = LimitsSection(wall_s=3)
    config = RunConfig(env=EnvSection(id="a/B-v0"), sandbox=SandboxSection(limits=limits))
    assert config.env.id == "a/B-v0"
    with pytest.raises(ConfigError) as caught:
        check_all_read(config)
    assert str(caught.value) == (
        "sandbox.limits.wall_s is set but never read: no part of this run uses it, so the value "
        "has no effect; remove it from the config, or enable the part that it belongs to"
    )
    assert config.sandbox.limits.wall_s == 3
    check_all_read(config)
