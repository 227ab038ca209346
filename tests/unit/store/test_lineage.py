"""The exactly-once rule, held against a run that carries its training in its weights."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from agentrl.store.lineage import ResumptionMark, TrainedMark, find_trained, line_to


def test_a_run_that_was_never_resumed_has_one_line() -> None:
    assert line_to(7, []) == (range(7),)
    assert find_trained(
        7, [TrainedMark(3, 1, 1), TrainedMark(6, 2, 2), TrainedMark(7, 3, 3)], []
    ) == {1: 1, 2: 2}


def test_what_came_after_the_checkpoint_does_not_count() -> None:
    """The picture in the docstring: a checkpoint at 40, killed and resumed at 60."""
    resumed = [ResumptionMark(60, 40)]
    assert line_to(90, resumed) == (range(60, 90), range(40))
    marks = [TrainedMark(30, 1, 1), TrainedMark(50, 2, 2), TrainedMark(70, 2, 2)]
    assert find_trained(60, marks, resumed) == {1: 1, 2: 2}
    assert find_trained(61, marks, resumed) == {1: 1}
    assert find_trained(90, marks, resumed) == {1: 1, 2: 2}


def test_a_checkpoint_of_an_abandoned_line_still_has_its_own() -> None:
    """Someone brings back a checkpoint that had been taken away: position 50, before the kill."""
    resumed = [ResumptionMark(60, 40)]
    assert line_to(50, resumed) == (range(50),)
    again = [*resumed, ResumptionMark(80, 50)]
    assert line_to(95, again) == (range(80, 95), range(50))


def test_without_a_checkpoint_nothing_was_trained() -> None:
    assert find_trained(0, [TrainedMark(3, 1, 1)], [ResumptionMark(9, 0)]) == {}
    assert line_to(12, [ResumptionMark(9, 0)]) == (range(9, 12), range(0))


@dataclass
class Run:
    """A run whose weights are the list of groups that trained them."""

    records: int = 0
    step: int = 0
    weights: list[int] = field(default_factory=list[int])
    marks: list[TrainedMark] = field(default_factory=list[TrainedMark])
    resumed: list[ResumptionMark] = field(default_factory=list[ResumptionMark])
    checkpoints: list[tuple[int, int, list[int]]] = field(
        default_factory=lambda: [(0, 0, list[int]())]
    )
    groups: int = 0

    @property
    def trained(self) -> dict[int, int]:
        return find_trained(self.records, self.marks, self.resumed)

    def train(self, count: int) -> None:
        waiting = [group for group in range(self.groups) if group not in self.trained][:count]
        self.step += 1
        self.weights = self.weights + waiting
        self.marks += [TrainedMark(self.records, group, self.step) for group in waiting]
        self.records += 1

    def checkpoint(self) -> None:
        self.records += 1
        self.checkpoints.append((self.records, self.step, self.weights))

    def kill_and_resume(self, checkpoint: int) -> None:
        position, self.step, self.weights = self.checkpoints[checkpoint % len(self.checkpoints)]
        self.resumed.append(ResumptionMark(self.records, position))
        self.records += 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("collect"), st.integers(1, 4)),
            st.tuples(st.just("train"), st.integers(0, 3)),
            st.tuples(st.just("checkpoint"), st.just(0)),
            st.tuples(st.just("kill"), st.one_of(st.just(-1), st.integers(0, 9))),
        ),
        max_size=40,
    )
)
def test_the_marks_say_what_the_weights_hold(events: list[tuple[str, int]]) -> None:
    """After any crashes, resumed from any checkpoint: trained exactly once, or yet to be."""
    run = Run()
    for what, number in events:
        match what:
            case "collect":
                run.groups += number
                run.records += number
            case "train":
                run.train(number)
            case "checkpoint":
                run.checkpoint()
            case _:
                run.kill_and_resume(number)
        assert sorted(run.trained) == sorted(run.weights)
        assert len({*run.weights}) == len(run.weights)
        for position, step, weights in run.checkpoints:
            trained = find_trained(position, run.marks, run.resumed)
            assert sorted(trained) == sorted(weights)
            assert max(trained.values(), default=0) <= step
