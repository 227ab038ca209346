"""Prints a reward for each answer, and their mean as `reward`."""

import json
from pathlib import Path

RIGHT = {"requests": 5, "errors": 2, "busiest": "10.0.0.1"}
try:
    answers = json.loads(Path("/app/answers.json").read_text())
except (OSError, ValueError):
    answers = None
if not isinstance(answers, dict):
    answers = {}
rewards = {key: float(answers.get(key) == value) for key, value in RIGHT.items()}
print(json.dumps({**rewards, "reward": sum(rewards.values()) / len(rewards)}))
