"""Each feature of Harbor's format: played as it says, on a real engine, or refused by name.

Mutants seen caught: hooks run for a verifier apart alone, a health check that fails at once, a
folder merged with the image's.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl.authoring.gold import play_gold
from agentrl.env import call, say
from agentrl.errors import SandboxError, VerifierError
from agentrl.task import Task
from agentrl_envs.harbor import HarborEnv
from agentrl_sandbox.provider import DockerProvider
from tests.support.examples import spread_cases
from tests.support.harbor_features import FEATURES, IMAGE, PLAYED, checked
from tests.support.harbor_tasks import TOML, write_task

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]
APART = TOML.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"')


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def provider() -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.close()


def made(folder: Path, provider: DockerProvider) -> tuple[HarborEnv, Task]:
    env = HarborEnv(str(folder), splits="all", provider=provider)
    (task,) = env.tasks("train")
    return env, task


@pytest.mark.parametrize("name", spread_cases([*PLAYED], 6))
@pytest.mark.timeout(120)
async def test_a_feature_pays_its_oracle_and_nobody_else(
    name: str, tmp_path: Path, provider: DockerProvider
) -> None:
    env, task = made(FEATURES[name].write(tmp_path / "task"), provider)
    try:
        episode = await play_gold(env, task)
        assert episode.reward == 1.0, [message.text for message in episode.messages]
        await env.reset(options={"task": task})
        assert (await env.step(say("done")))[1] == 0.0
    finally:
        await env.close()


async def test_an_image_that_brings_its_tests(tmp_path: Path, provider: DockerProvider) -> None:
    built = FEATURES["a verifier's image"].write(tmp_path / "built")
    image = await provider.build(str(built / "tests"), timeout_s=60)
    toml = f'artifacts = ["/tmp/done"]\n[environment]\n{IMAGE}'
    toml += f'[verifier.environment]\ndocker_image = "{image}"\n'
    solve = "#!/bin/bash\ntouch /tmp/done\n"
    env, task = made(write_task(tmp_path / "task", toml=toml, test=None, solve=solve), provider)
    try:
        assert (await play_gold(env, task)).reward == 1.0
    finally:
        await env.close()


async def test_a_container_that_is_never_healthy_is_a_failure(
    tmp_path: Path, provider: DockerProvider
) -> None:
    toml = TOML + '[environment.healthcheck]\ncommand = "echo too cold >&2; exit 3"\n'
    toml += "interval_sec = 0.1\nretries = 2\n"
    env, task = made(write_task(tmp_path / "task", toml=toml), provider)
    with pytest.raises(
        SandboxError, match=r"failed 2 times.*exit code 3 at last: too cold"
    ) as caught:
        await env.reset(options={"task": task})
    assert f"{tmp_path}/task/task.toml: environment.healthcheck" in str(caught.value)
    await env.close()


async def test_a_huge_reward_file_is_refused_and_not_read(
    tmp_path: Path, provider: DockerProvider
) -> None:
    test = "#!/bin/bash\ntruncate -s 3G /logs/verifier/reward.txt\n"
    env, task = made(write_task(tmp_path / "task", test=test), provider)
    await env.reset(options={"task": task})
    with pytest.raises(VerifierError, match=r"reward.txt takes more than \d+ bytes"):
        await env.step(say("done"))
    await env.close()


LEFT = {
    "a file with a hole": "mkdir /out; truncate -s 3G /out/a.txt",
    "a folder with one": "mkdir -p /out/a.txt; truncate -s 3G /out/a.txt/b",
}


@pytest.mark.parametrize("way", LEFT)
async def test_a_huge_artefact_is_refused_and_not_read(
    way: str, tmp_path: Path, provider: DockerProvider
) -> None:
    toml = 'artifacts = ["/out/a.txt"]\n' + APART
    env, task = made(write_task(tmp_path / "task", toml=toml), provider)
    await env.reset(options={"task": task})
    await env.step(call("bash", command=LEFT[way]))
    with pytest.raises(VerifierError, match=r"artefact /out/a.txt .* takes more than 268435456"):
        await env.step(say("done"))
    await env.close()


MESS = {
    "a pipe": ("mkdir /out; mkfifo /out/a.txt", 0.0),
    "many processes": ("mkdir /out; touch /out/a.txt; while :; do sleep 1000 & done", 1.0),
    "full memory": (
        "mkdir /out; touch /out/a.txt; head -c 900000000 /dev/zero >/dev/shm/full; tail /dev/zero",
        1.0,
    ),
}


@pytest.mark.parametrize("way", MESS)
@pytest.mark.parametrize("mode", ["shared", "separate"])
async def test_an_agent_that_makes_a_mess_is_verified_all_the_same(
    way: str, mode: str, tmp_path: Path, provider: DockerProvider
) -> None:
    toml = TOML if mode == "shared" else 'artifacts = ["/out/a.txt"]\n' + APART
    folder = write_task(tmp_path / "task", toml=toml, test=checked("[ -f /out/a.txt ]"))
    env = HarborEnv(
        str(folder), splits="all", provider=provider, processes=64, command_timeout_s=5.0
    )
    (task,) = env.tasks("train")
    command, reward = MESS[way]
    try:
        await env.reset(options={"task": task})
        await env.step(call("bash", command=command))
        assert (await env.step(say("done")))[1] == reward
    finally:
        await env.close()
