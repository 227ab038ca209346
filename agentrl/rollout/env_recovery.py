"""A world that was lost is made again by verified replay, and its trajectory goes on.

A world is lost with what held it: a worker, a machine. Nothing that its trajectory has done is:
reset with the same seed, the same actions, every answer compared by its fingerprint. A world that
says something else is not the same; then the trajectory fails, and is played from its beginning.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.env import Env
from agentrl.errors import EnvError, ForkUnsupported, RolloutError, WorldLost
from agentrl.events.history import ActionHistory
from agentrl.rollout.env_replay import close_world, replay
from agentrl.rollout.env_wrapper import swap_worlds


@dataclass(slots=True)
class EnvRecoveryCounts:
    """Counts of environments lost and rebuilt, over a run."""

    worlds: int = 0
    replayed_turns: int = 0
    lost_worlds: int = 0
    """Not made again; their trajectories failed."""
    lost_turns: int = 0

    def figures(self) -> dict[str, float]:
        """Return the counts, for the metrics."""
        return {
            "worlds/rebuilt": self.worlds,
            "worlds/replayed_turns": self.replayed_turns,
            "worlds/lost": self.lost_worlds,
            "worlds/lost_turns": self.lost_turns,
        }


class EnvRecovery:
    """Makes the worlds of one trajectory again, so often and no more: a step may be what kills."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        *,
        left: int,
        reset_s: float,
        step_s: float,
        rebuilt: EnvRecoveryCounts,
    ) -> None:
        """Take what makes an environment, wrapped as that of the trajectory is."""
        self._make_env = make_env
        self._left = left
        self._reset_s = reset_s
        self._step_s = step_s
        self._rebuilt = rebuilt

    async def rebuild(self, env: Env, history: ActionHistory, lost: WorldLost) -> None:
        """Put a world that has lived through `history` in the place of the one that `env` wraps.

        Raises `EnvError` where it does not come back: `lost` itself after so many, or with the
        answer that differs.
        """
        turns = len(history.steps)
        while self._left:
            self._left -= 1
            try:
                world = await replay(
                    self._make_env, history, reset_s=self._reset_s, step_s=self._step_s
                )
            except ForkUnsupported as error:
                self._gave_up(turns)
                raise EnvError(
                    f"{lost}; its replay gave a different environment: {error}"
                ) from lost
            except WorldLost as error:
                lost = error
            except RolloutError as error:
                # What broke says nothing about the world.
                lost = WorldLost(f"{lost}; then {error}")
            else:
                lost_world = swap_worlds(env, world)
                with contextlib.suppress(EnvError):
                    await close_world(lost_world)
                self._rebuilt.worlds += 1
                self._rebuilt.replayed_turns += turns
                return
        self._gave_up(turns)
        raise lost

    def _gave_up(self, turns: int) -> None:
        self._rebuilt.lost_worlds += 1
        self._rebuilt.lost_turns += turns
