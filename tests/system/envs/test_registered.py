"""What `agentrl_envs` registers, and that listing it costs nothing."""

import pytest

import agentrl
from agentrl.env import Env
from agentrl.errors import ConfigError
from agentrl.testing import check_env
from agentrl_envs import register_envs
from agentrl_envs.families import FAMILIES, camel
from agentrl_envs.reasoning import ReasoningEnv
from tests.support.reasoning_tasks import first, score

QUICKSTART = {"chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 3}}


def test_names_in_ids_are_unambiguous() -> None:
    assert camel("chain_sum") == "ChainSum"
    assert len({camel(family) for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("kind", ["reasoning", "code"])
async def test_every_registered_id_can_be_made(kind: str) -> None:
    register_envs()
    ids = {name for name in agentrl.registry if name.startswith(f"{kind}/")}
    assert ids == {f"{kind}/{camel(family)}-v0" for family in FAMILIES} | {f"{kind}/Mix-v0"}
    for name in sorted(ids):
        kwargs = {"families": ["gcd", "lcm"]} if "/Mix-" in name else {}
        env = agentrl.make(name, **kwargs)
        assert isinstance(env, Env)
        await env.close()


def test_a_mix_needs_families() -> None:
    register_envs()
    with pytest.raises(ConfigError, match="families"):
        agentrl.make("reasoning/Mix-v0")


async def test_check_env_of_reasoning() -> None:
    promises = await check_env(ReasoningEnv(families=QUICKSTART))
    assert {"gold scores", "doing nothing does not score", "splits are disjoint"} <= {*promises}


async def test_check_env_of_a_mix() -> None:
    await check_env(ReasoningEnv(families=["spell_backward", "gcd", "word_sorting"], system=""))


async def test_wording_and_partial_credit() -> None:
    (task,) = first(ReasoningEnv(families="spell_backward"), 1)
    half = str(task.answer)[:-1]
    exact = ReasoningEnv(families="spell_backward", partial_credit=False, system="")
    assert 0 < await score(ReasoningEnv(families="spell_backward"), task, half) < 1
    assert await score(exact, task, half) == 0.0
    assert await score(exact, task, f"Answer: {task.answer}") == 1.0
    assert exact.gold(task, task.messages).text == task.answer
