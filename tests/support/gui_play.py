"""A task of every kind, played twice: by nobody, and by its gold player on a desktop set ahead."""

from agentrl.authoring.gold import GoldEpisode, play_gold
from agentrl.env import say
from agentrl.task import Task
from agentrl_envs.gui import GuiEnv
from agentrl_envs.gui.desktop import DesktopPool
from agentrl_envs.gui.tasks import template_pack


async def gold_earns_one_and_doing_nothing_earns_nothing(
    pool: DesktopPool, task: Task
) -> GoldEpisode:
    """Check both, and that a desktop set ahead looks, pixel by pixel, as one that was not."""
    pack = template_pack(templates=[task.data["template"]])
    env = GuiEnv(pack=pack, desktop=pool, max_turns=None, observation=["axtree", "screenshot"])
    opening, info = await env.reset(seed=task.seed, options={"task": task, "next": (task,)})
    assert not info["staged_desktop"]
    await pool.wait_until_ready()
    idle = await env.step(say(""))
    assert (idle[1], idle[2]) == (0.0, True)
    taken = pool.figures()["set_taken"]
    episode = await play_gold(env, task)
    await env.close()
    assert pool.figures()["set_taken"] == taken + 1
    assert episode.opening == opening
    assert episode.reward == 1, [message.text for message in episode.messages]
    return episode
