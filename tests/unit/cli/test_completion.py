"""What a shell may put after what has been typed.

Mutants seen caught: a value of bash with its key before it; values for a key that only begins like
the one typed; keys in the place of the values of the only one.
"""

from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.cli.completion import complete_key, join_bash_words, list_overrides
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


def test_the_file_holds_the_keys_of_the_schema() -> None:
    """When this fails: `python -m agentrl.config.key_values`."""
    assert key_values.FILE.read_text(encoding="utf-8") == key_values.format_key_values()
