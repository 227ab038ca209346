"""Gymnasium: one environment per episode, made, played and closed on the process's main thread."""

# The library is in another venv, so a type checker cannot see it from here.
# pyright: basic, reportMissingImports=false

import base64
import contextlib
import importlib
import json
import math
import os
import sys
import threading
import types
from functools import partial, reduce
from typing import Any

INFO_BYTES = 2**16
"""Most of one entry of an info, as JSON; a longer one is left out."""
ASKED = []
"""Environments that were made to be asked."""


def preload():
    """Import the library."""
    import gymnasium  # noqa: F401


def import_wording(folder):
    """Import `agentrl.gym.wording`, of the package in a folder, and nothing else of agentrl.

    The packages around it import what is not there. An agentrl of this interpreter's own is left
    as it is.
    """
    outer = {"agentrl": folder, "agentrl.gym": os.path.join(folder, "gym")}
    before = {name: module for name, module in sys.modules.items() if is_ours(name)}
    for name in before:
        del sys.modules[name]
    for name, place in outer.items():
        package = types.ModuleType(name)
        package.__path__ = [place]
        sys.modules[name] = package
    try:
        return importlib.import_module("agentrl.gym.wording.episode")
    finally:
        for name in filter(is_ours, list(sys.modules)):
            del sys.modules[name]
        sys.modules.update(before)


def is_ours(name):
    return name == "agentrl" or name.startswith("agentrl.")


def find_object(reference):
    """Return the object that `module:name` names."""
    module, _, name = reference.partition(":")
    target: Any = importlib.import_module(module)
    return reduce(getattr, name.split("."), target)


def find_factory(id):
    """Return the function that makes an environment: of Gymnasium's registry, or `module:Class`."""
    import gymnasium

    module, colon, name = id.rpartition(":")
    if colon:
        importlib.import_module(module)
        if name.isidentifier() and name not in gymnasium.registry:
            return find_object(id)
    return partial(gymnasium.make, name)


def ask(params):
    """Return the prompt of an environment's tasks; refuse one that no words express."""
    ASKED.append(build_words(import_wording(params["agentrl"]), params))
    return {"prompt": ASKED[-1].build_prompt()}


def close_asked():
    """Close what was made for its prompt, as after an episode."""
    for words in ASKED:
        words.close()


def build_words(wording, params):
    """Make an environment with its words."""
    words = wording.GivenWords(
        instructions=params["instructions"],
        actions=params["actions"],
        describe=params["describe"] and find_object(params["describe"]),
        act=params["act"] and find_object(params["act"]),
    )
    return wording.WordedEnv(find_factory(params["id"])(**params["kwargs"]), words)


class GymnasiumEpisode:
    """One environment."""

    def __init__(self, params):
        self.open_files = list_open_files()
        self.wording = import_wording(params["agentrl"])
        self.words: Any = build_words(self.wording, params)

    def reset(self, seed):
        with self.attributing() as answer:
            parts, info = self.words.reset(seed)
            answer.update(parts=encode_parts(parts), info=encode_info(info))
        return answer

    def step(self, text, candidates):
        with self.attributing() as answer:
            step = self.words.step(text, candidates)
            if isinstance(step, str):
                answer["refusal"] = step
            else:
                answer.update(
                    parts=encode_parts(step.parts),
                    reward=repr(step.reward),  # JSON has no NaN, which is told with its task
                    terminated=step.terminated,
                    truncated=step.truncated,
                    info=encode_info(step.info),
                )
        return answer

    def refuse(self, why):
        return self.words.refuse(why)

    def find_copy_fault(self):
        """Return why this process cannot be forked with its environment, or an empty string."""
        if (count := threading.active_count()) > 1:
            return f"it has {count - 1} threads of its own"
        if files := sorted(list_open_files() - self.open_files):
            return f"it holds {', '.join(files)[:200]} open"
        return ""

    def close(self):
        words, self.words = self.words, None
        if words is not None:
            words.close()

    @contextlib.contextmanager
    def attributing(self):
        """Give an answer to fill, which says `fault` where a function of the user's is at fault."""
        answer = {}
        try:
            yield answer
        except self.wording.WordingFault as error:
            answer["fault"] = str(error)


def list_open_files():
    """Return the open descriptors of this process and what they are; devices are left out."""
    files = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if not target.startswith(("/dev/", "/proc/")):
                files.add(target)
    return files


def encode_parts(parts):
    """Return texts as they are, and images with their bytes in base64."""
    return [
        part
        if isinstance(part, str)
        else {"image": base64.b64encode(part[0]).decode(), "media_type": part[1]}
        for part in parts
    ]


def encode_info(info):
    """Return the entries of an info that are short JSON of valid Unicode."""
    encoded = {}
    for name, value in info.items():
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            value = encode_value(value)
            line = json.dumps({name: value}, ensure_ascii=False).encode()
            if isinstance(name, str) and len(line) <= INFO_BYTES:
                encoded[name] = value
    return encoded


def encode_value(value):
    """Return a value as JSON has it; raise `TypeError` or `ValueError` for what it has not."""
    if isinstance(value, dict):
        return {str(name): encode_value(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode_value(part) for part in value]
    if hasattr(value, "tolist") and getattr(value, "size", INFO_BYTES) < INFO_BYTES:
        return encode_value(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(type(value))


EPISODE = GymnasiumEpisode
