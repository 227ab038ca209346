"""What a shell may put after what has been typed.

Mutants seen caught: an override answered where an option stands before it, or in the config's
place; a value of bash with its key before it; values for a key that only begins like
the one typed; keys in the place of the values of the only one.
"""

from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.cli.completion import (
    CONFIG_COMMANDS,
    complete_command_line,
    complete_key,
    join_bash_words,
    list_overrides,
)
from agentrl.config import key_values


def test_bash_splits_at_the_equals_sign() -> None:
    def joined(words: str, number: int) -> tuple[str, int]:
        environment = {
            "_AGENTRL_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(number),
        }
        join_bash_words(environment)
        return environment["COMP_WORDS"], int(environment["COMP_CWORD"])

    assert joined("agentrl train q a.b =", 4) == ("agentrl train q a.b=", 4)
    assert joined("agentrl train q a.b = v", 5) == ("agentrl train q a.b= v", 4)
    assert joined("agentrl train q a.b = v run", 6) == ("agentrl train q a.b = v run", 6)
    assert joined("agentrl tr", 1) == ("agentrl tr", 1)
    assert joined("agentrl", 0) == ("agentrl", 0)


def test_other_shells_keep_their_words() -> None:
    environment = {"_AGENTRL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "agentrl a ="}
    join_bash_words(environment)
    assert environment["_TYPER_COMPLETE_ARGS"] == "agentrl a ="


def test_overrides() -> None:
    assert {"run.steps=", "run.seed="} <= set(list_overrides("run.s"))
    assert list_overrides("run.ste") == ["run.steps=100"]
    assert list_overrides("learn.loss.name=pp") == ["learn.loss.name=ppo_clip"]
    assert "learn.layout=tree" in list_overrides("learn.layout=")
    assert list_overrides("env.id=code/ChainS") == ["env.id=code/ChainSum-v0"]
    assert list_overrides("env.i") != ["env.id="]
    assert list_overrides("run.name") == ["run.name="]
    assert list_overrides("run=") == list_overrides("no.such.key") == []


def test_keys_and_their_sections() -> None:
    assert {"learn", "learn.loss"} <= set(complete_key("lea"))
    assert complete_key("run.step") == ["run.steps"]


def test_bash_is_given_the_value_alone() -> None:
    def words(typed: str, number: int) -> list[str]:
        environment = {
            "_AGENTRL_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(number),
        }
        done = CliRunner().invoke(app, env=environment, prog_name="agentrl")
        return done.stdout.split()

    assert words("agentrl train quickstart learn.loss.name= pp", 4) == ["ppo_clip"]
    assert words("agentrl train quickstart run.ste", 3) == ["run.steps=100"]
    assert words("agentrl train quicks", 2) == ["quickstart"]
    assert words("agentrl config explain run.step", 3) == ["run.steps"]


def test_bash_is_answered_alike_without_the_application() -> None:
    for typed, number in (
        *((f"agentrl {command} quickstart learn.op", 3) for command in CONFIG_COMMANDS),
        ("agentrl train quickstart run.seed=1 learn.loss.name= pp", 5),
        ("agentrl train quickstart run.ste more", 3),
        ("agentrl train quickstart ", 3),
    ):
        environment = {
            "_AGENTRL_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(number),
        }
        done = CliRunner().invoke(app, env=environment, prog_name="agentrl")
        words = complete_command_line(environment)
        assert words
        assert words == done.stdout.split()


def test_other_words_are_left_to_the_application() -> None:
    def words(typed: str, number: int, shell: str = "complete_bash") -> list[str] | None:
        return complete_command_line(
            {"_AGENTRL_COMPLETE": shell, "COMP_WORDS": typed, "COMP_CWORD": str(number)}
        )

    assert words("agentrl train quickstart run.ste", 3) == ["run.steps=100"]
    assert words("agentrl train quickstart run.ste", 3, "complete_zsh") is None
    assert words("agentrl train qui", 2) is None
    assert words("agentrl tra", 1) is None
    assert words("agentrl eval quickstart --split run.ste", 4) is None
    assert words("agentrl train quickstart --res", 3) is None
    assert words("agentrl config explain run.ste", 3) is None
    assert words("agentrl train 'my run' run.ste", 4) is None
    assert complete_command_line({}) is None


def test_the_file_holds_the_keys_of_the_schema() -> None:
    """When this fails: `python -m agentrl.config.key_values`."""
    assert key_values.FILE.read_text(encoding="utf-8") == key_values.format_key_values()
