"""Click the button that is asked for: the answer is a place on a screen that has to be seen."""

import copy
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from agentrl.env import Action, BaseEnv, ForkStrategy, Observation, Step, say
from agentrl.errors import ConfigError
from agentrl.message import Content, Message
from agentrl.rewards import drop_thoughts
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task, split_of
from agentrl_envs.visual.screen import ButtonScreen, side_of

Tells = Literal["colour", "shape"]
Shows = Literal["image", "text", "both"]
Asks = Literal["before", "after"]
TEMPLATES: Mapping[str, str] = {
    "colour": "Click the {} button.",
    "shape": "Click the {}.",
}
_PLACE = re.compile(r"^\s*(\d{1,5})[ ,]+(\d{1,5})\s*$")


class SeeButtonEnv(BaseEnv):
    """Shows a screen of buttons and names one of them by colour or by shape.

    The agent answers with the place to click, `x y` from the top left, in pixels or in parts of the
    screen. A click on the button ends the episode with reward 1. After another one the screen is
    shown again, the click marked on it, until there were `clicks` of them.
    """

    fork_strategy: ForkStrategy = "copy"

    def __init__(
        self,
        *,
        templates: Sequence[Tells] = ("colour", "shape"),
        width: int = 112,
        height: int = 112,
        buttons: int = 3,
        clicks: int = 1,
        shows: Shows = "image",
        asks: Asks = "after",
        parts: int | None = None,
    ) -> None:
        """Choose tasks.

        Args:
            templates: What tells the buttons apart, and how the one is named.
            width: Of the screen, in pixels.
            height: Of the screen, in pixels.
            buttons: How many there are, 2 to 4.
            clicks: How many an episode has.
            shows: The screen as an image, in words for policies that cannot see, or both.
            asks: Whether the words come before the image or after it. Before it, the image is read
                by a policy that knows what to look for.
            parts: Of how many parts to a side a place is told, counted from 0: with 10 the middle
                of the screen is `5 5`, and 1000 is what some models were trained on. In pixels by
                default.
        """
        wrong = [name for name in templates if name not in TEMPLATES]
        if wrong or not templates:
            raise ConfigError(f"templates is {list(templates)}; choose from {', '.join(TEMPLATES)}")
        if not 2 <= buttons <= 4:
            raise ConfigError(f"buttons must be 2 to 4, got {buttons}; there are four shapes")
        if min(width, height) < 48:
            raise ConfigError(f"a screen must be at least 48 x 48 pixels, got {width} x {height}")
        if clicks < 1:
            raise ConfigError(f"clicks must be at least 1, got {clicks}")
        if shows not in ("image", "text", "both"):
            raise ConfigError(f"shows is {shows!r}; choose image, text or both")
        if asks not in ("before", "after"):
            raise ConfigError(f"asks is {asks!r}; choose before or after")
        least = math.ceil(max(width, height) / (2 * (side_of(width, height) // 2 - 1)))
        if parts is not None and parts < least:
            raise ConfigError(
                f"parts must be at least {least} on a screen of {width} x {height}, got {parts}: "
                "the centre of a larger part may lie outside the button whose centre it contains"
            )
        self._templates = tuple(templates)
        self._size = (width, height)
        self._buttons, self._clicks = buttons, clicks
        self._shows: Shows = shows
        self._asks: Asks = asks
        self._parts = parts
        self._task: Task | None = None
        self._clicked: list[tuple[int, int]] = []
        self._seen = 0
        self._over = True

    def tasks(self, split: Split, *, seed: int = 0) -> Iterator[Task]:
        """Yield endless screens; what is on a screen and asked for decides its split."""
        rng = random.Random(derive("visual", split, seed))
        width, height = self._size
        while True:
            number = rng.randrange(2**53)
            screen_rng = random.Random(number)
            tells = screen_rng.choice(self._templates)
            screen = ButtonScreen.random(
                screen_rng, width=width, height=height, buttons=self._buttons, tells=tells
            )
            target_index = screen_rng.randrange(self._buttons)
            button = screen.buttons[target_index]
            instruction = TEMPLATES[tells].format(getattr(button, tells))
            problem = f"{instruction}\n{screen.describe()}"
            if split_of(problem) == split:
                yield Task(
                    prompt=problem,
                    answer=self._format_place(button.x, button.y),
                    split=split,
                    seed=number,
                    data={
                        "asked": instruction,
                        "wanted": target_index,
                        "screen": screen.to_plain(),
                    },
                    tags=(tells,),
                )

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Show the screen of `options["task"]`, or of a train task chosen by `seed`."""
        task = (options or {}).get("task")
        self._task = task or next(iter(self.tasks("train", seed=seed or 0)))
        self._clicked, self._seen, self._over = [], 0, False
        instruction = self._task_data["asked"]
        return Observation((Message("user", self._content(instruction)),), ()), {}

    async def step(self, action: Action) -> Step:
        """Click where the agent says."""
        if self._over:
            raise RuntimeError("no episode is running; call reset first")
        screen = ButtonScreen.from_plain(self._task_data["screen"])
        button = screen.buttons[self._task_data["wanted"]]
        self._seen += 1
        place = _PLACE.match(drop_thoughts(action.text))
        if place is not None:
            at = self._find_pixel(int(place[1]), int(place[2]))
            if button.holds(*at):
                self._over = True
                return Observation(()), 1.0, True, False, {}
            self._clicked.append(at)
        if self._seen >= self._clicks:
            self._over = True
            return Observation(()), 0.0, True, False, {}
        feedback = "Missed." if place else "Answer with two numbers: x y."
        return Observation((Message("user", self._content(feedback)),)), 0.0, False, False, {}

    async def close(self) -> None:
        self._over = True

    async def fork(self) -> Self:
        twin = copy.copy(self)
        twin._clicked = [*self._clicked]
        return twin

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the middle of the button."""
        return say(str(task.answer))

    @property
    def _task_data(self) -> Mapping[str, Any]:
        if self._task is None:
            raise RuntimeError("there is no screen yet; call reset first")
        return self._task.data

    def _content(self, said: str) -> Content:
        screen = ButtonScreen.from_plain(self._task_data["screen"])
        words = said if self._shows == "image" else f"{screen.describe()}\n{said}"
        if self._shows == "text":
            return words
        picture = screen.picture(self._clicked)
        return (words, picture) if self._asks == "before" else (picture, words)

    def _format_place(self, x: int, y: int) -> str:
        if self._parts is None:
            return f"{x} {y}"
        width, height = self._size
        return f"{x * self._parts // width} {y * self._parts // height}"

    def _find_pixel(self, x: int, y: int) -> tuple[int, int]:
        """Return the pixel that a place means: of a part, the middle."""
        if self._parts is None:
            return x, y
        width, height = self._size
        return (2 * x + 1) * width // (2 * self._parts), (2 * y + 1) * height // (2 * self._parts)
