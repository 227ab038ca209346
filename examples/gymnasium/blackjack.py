"""Gymnasium's Blackjack in few words, and somebody who hits and stands at random.

python blackjack.py writes what the random player did to blackjack.jsonl, from which blackjack.yaml
starts its policy: it can play then, and reinforcement learning teaches it when to stand.
"""

import asyncio
import json
import random
from itertools import islice
from pathlib import Path

import yaml

import agentrl

MOVES = ("stand", "hit")


def tell(seen):
    """Tell an observation: the player's sum, the dealer's card, whether an ace counts 11."""
    total, dealer, has_soft_ace = seen
    return f"You have {'soft' if has_soft_ace else 'hard'} {total}, the dealer {dealer}."


def move(text):
    """Read an action; what is not `hit` stands, or a policy saves its stake by saying nothing."""
    return int(text.strip().lower() == "hit")


async def play_at_random(env, task, rng):
    """Play an episode; return its messages, as a recording has them, and its reward."""
    observation, _ = await env.reset(options={"task": task})
    messages, reward, has_ended = [], 0.0, False
    while not has_ended:
        messages += [{"role": m.role, "content": m.text} for m in observation.messages]
        word = rng.choice(MOVES)
        messages.append({"role": "assistant", "content": word})
        observation, reward, terminated, truncated, _ = await env.step(agentrl.say(word))
        has_ended = terminated or truncated
    return messages, reward


async def record(env, count):
    """Return the recordings of so many episodes."""
    rng, rows = random.Random(0), []
    for task in islice(env.tasks("train"), count):
        messages, reward = await play_at_random(env, task, rng)
        rows.append({"version": 2, "messages": messages, "reward": reward})
    await env.close()
    return rows


def main():
    section = yaml.safe_load(Path("blackjack.yaml").read_text())["env"]
    rows = asyncio.run(record(agentrl.make(section["id"], **section["kwargs"]), 400))
    Path("blackjack.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
