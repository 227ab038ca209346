"""What programs behind the gateway pay, and who may play them: rules that need no package.

Mutants killed here: a reward's weight dropped, a missing reward counted as 0, errors of a trace
overlooked, a deadline of the program's paid, another role's trace paid, several rewards reduced to
the first, roles without a model let through, a hosted runtime taken as it is, commands run in the
subprocess runtime unasked, `P` as 1, an unknown grade as 0, NaN paid, an infinite metric told, one
scorer of two chosen;
of OpenEnv, an answer without `done`, or of another type, taken for a step, and an error about the
server's own model taken for the action's; a text paid as a number, or taken for an end, an
end without a reward paid 0, and an end at reset overlooked.
"""

import importlib.util
import math
import re
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import EnvError
from agentrl.task import Task, split_of
from agentrl_envs.adapters.foreign_env import ForeignEnv
from agentrl_envs.adapters.gem import GemEnv
from agentrl_envs.adapters.host import HOSTED
from agentrl_envs.adapters.hosted_program import divide_tasks


def load_kind(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HOSTED / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


verifiers: Any = load_kind("verifiers_kind")
inspected: Any = load_kind("inspect_kind")
openenv: Any = load_kind("openenv_kind")
hosting: Any = load_kind("host")


def reward(score: float, weight: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(score=score, weight=weight)


def error(text: str = "no such file") -> SimpleNamespace:
    return SimpleNamespace(type="TaskError", message=text)


def trace(name: str = "agent", **fields: Any) -> SimpleNamespace:
    usual = {"ok": True, "errors": [], "is_timeout": False, "calls": [], "metrics": {"length": 3.0}}
    usual |= {"rewards": {"right": reward(1.0)}, "stop_condition": "agent_completed"}
    return SimpleNamespace(**(usual | {"agent": SimpleNamespace(name=name)} | fields))


def read(*traces: SimpleNamespace, role: str = "agent", **fields: Any) -> dict[str, Any]:
    usual = {"errors": [], "ok": all(one.ok for one in traces), "traces": list(traces)}
    return verifiers.read_episode(SimpleNamespace(**(usual | fields)), role)


def test_an_episode_pays_score_times_weight() -> None:
    paid = {"right": reward(1.0), "short": reward(0.5, 0.25), "rude": reward(2.0, -1.0)}
    assert read(trace(rewards=paid)) == {
        "rewards": {"right": 1.0, "short": 0.125, "rude": -2.0},
        "metrics": {"length": 3.0},
        "stop": "agent_completed",
    }


@pytest.mark.parametrize(
    ("told", "failure"),
    [
        (read(trace(rewards={"right": None})), "the reward right was not computed"),
        (read(trace(rewards={})), "the task has no reward"),
        (read(trace(rewards={"right": reward(math.nan)})), "the reward right is nan with the"),
        (read(trace(rewards={"right": reward(-math.inf)})), "the reward right is -inf with the"),
        (read(trace(rewards={"right": reward(1e308, 1e308)})), "but a reward is a finite number"),
        (read(trace(ok=False, errors=[error()])), "TaskError: no such file"),
        (read(trace(ok=False)), "its trace is not ok"),
        (read(trace(), errors=[error("run")]), "TaskError: run"),
        (read(trace(), ok=False), "no finished trace of agent"),
        (read(), "no finished trace of agent"),
        (read(trace("other")), "no finished trace of agent"),
        (read(trace(is_timeout=True, stop_condition="agent_timeout")), "agent_timeout"),
        (read(trace(calls=[SimpleNamespace(error=error("400"))])), "TaskError: 400"),
        (read(trace(), trace("other", ok=False, errors=[error("it")])), "TaskError: it"),
        (read(trace(), trace(rewards={"right": reward(0.0)})), "was paid differently"),
    ],
)
def test_what_was_not_paid_is_a_failure(told: dict[str, Any], failure: str) -> None:
    assert {*told} == {"failure"}
    assert failure in told["failure"]


def test_a_metric_that_is_no_number_fails_nothing() -> None:
    told = read(trace(metrics={"length": 3.0, "ratio": math.nan, "odds": math.inf}))
    assert (told["metrics"], told["rewards"]) == ({"length": 3.0}, {"right": 1.0})


def test_the_trace_of_the_policys_role_is_paid() -> None:
    second = trace("second", rewards={"won": reward(-1.0)})
    first = trace("first", rewards={"won": reward(1.0)})
    assert read(second, first, role="first")["rewards"] == {"won": 1.0}
    assert read(second, second, role="second")["rewards"] == {"won": -1.0}


@given(
    st.dictionaries(st.text(max_size=5), st.floats(-9, 9), min_size=1, max_size=4), st.floats(-2, 2)
)
def test_no_part_of_a_reward_is_lost(scores: dict[str, float], weight: float) -> None:
    told = read(trace(rewards={name: reward(score, weight) for name, score in scores.items()}))
    assert told["rewards"] == {name: score * weight for name, score in scores.items()}


def test_the_policy_plays_the_only_role_without_a_model() -> None:
    assert verifiers.choose_role({"agent": False}, "") == "agent"
    assert verifiers.choose_role({"judge": True, "solver": False}, "") == "solver"
    assert verifiers.choose_role({"judge": True, "solver": False}, "solver") == "solver"


@pytest.mark.parametrize(
    ("roles", "asked", "wrong"),
    [
        ({"first": False, "second": False}, "", r"first, second would all be the policy.*second:"),
        ({"first": False, "second": False}, "second", r"would all be the policy.*\{first:"),
        ({"judge": True, "solver": False}, "judge", "judge has a model of its own"),
        ({"agent": True}, "", "every role has a model of its own"),
        ({"agent": False}, "solver", "no role 'solver'; the roles are agent"),
    ],
)
def test_roles_that_share_the_policy_are_refused(
    roles: dict[str, bool], asked: str, wrong: str
) -> None:
    with pytest.raises(ValueError, match=wrong):
        verifiers.choose_role(roles, asked)


@pytest.mark.parametrize(
    ("config", "runtime", "prepared"),
    [
        ({}, "", ["bash"]),
        ({"agent": {"harness": {"id": "null"}}}, "subprocess", ["null"]),
        ({"a": {"harness": {"id": "null"}}, "b": {"harness": {"id": "rlm"}}}, "", ["null", "rlm"]),
        ({"agent": {"harness": {"id": "null"}}}, "docker", []),
        ({"agent": {"harness": {"id": "null"}, "runtime": {"type": "docker"}}}, "", []),
    ],
)
def test_harnesses_are_prepared_where_no_container_runs_them(
    config: dict[str, Any], runtime: str, prepared: list[str]
) -> None:
    params = {"config": config, "runtime": runtime}
    assert [one["id"] for one in verifiers.list_harnesses(params)] == prepared


def test_a_runtime_is_the_configured_one_or_the_asked_one() -> None:
    assert verifiers.choose_runtime("agent", "docker", "subprocess", ["harness bash"]) == "docker"
    assert verifiers.choose_runtime("agent", "prime", "docker", ["harness bash"]) == "docker"
    assert verifiers.choose_runtime("agent", "prime", "", []) == "subprocess"
    with pytest.raises(ValueError, match=r"agent runs commands \(harness bash\).*with your rights"):
        verifiers.choose_runtime("agent", "prime", "", ["harness bash"])
    with pytest.raises(ValueError, match="runs in modal, which is hosted elsewhere"):
        verifiers.choose_runtime("agent", "modal", "docker", [])


@pytest.mark.parametrize(
    ("value", "paid"),
    [("C", 1.0), ("P", 0.5), ("I", 0.0), ("N", 0.0), (0.25, 0.25), (3, 3.0), (True, 1.0)],
)
def test_a_score_of_inspect_is_a_reward(value: Any, paid: float) -> None:
    told = inspected.read_scores({"match": value}, "", "")
    assert told["rewards"] == {"match": paid}
    assert inspected.read_scores({"match": {"a": value, "b": 9}}, "", "a") == told
    assert inspected.read_scores({"other": 9, "match": value}, "match", "") == told


@given(st.lists(st.text(min_size=1, max_size=3), max_size=30))
def test_two_tasks_of_a_library_leave_no_split_empty(names: list[str]) -> None:
    """The hash alone decides where it fills both."""
    splits, by_hash = divide_tasks(names), {name: split_of(name) for name in names}
    assert {*splits} == {*names}
    if len(splits) < 2 or len({*by_hash.values()}) == 2:
        assert splits == by_hash
    else:
        assert {*splits.values()} == {"train", "heldout"}
        assert sum(splits[name] != by_hash[name] for name in splits) == 1
        assert divide_tasks(names[::-1]) == splits


@pytest.mark.parametrize(
    ("scorer", "targets", "pays"),
    [
        ("match", [""], True),
        ("match", ["."], True),  # Inspect compares without punctuation
        ("match", ["plum", " "], True),
        ("match", ["plum"], False),
        ("match", [], False),
        ("includes", ["plum", ""], True),
        ("includes", ["."], False),
        ("choice", [""], True),
        ("choice", [], True),
        ("choice", ["", "A"], False),
    ],
)
def test_a_blank_target_pays_an_agent_of_inspect_that_says_nothing(
    scorer: str, targets: list[str], pays: bool
) -> None:
    assert inspected.PAYS_BLANK[scorer](targets) is pays


@pytest.mark.parametrize(
    ("scores", "scorer", "key", "failure"),
    [
        ({}, "", "", "has no score"),
        ({"a": 1, "b": 2}, "", "", "scored by a, b; set scorer:"),
        ({"a": 1}, "b", "", "no scorer b; the scorers are a"),
        ({"a": {"x": 1, "y": 2}}, "", "", "a gives x, y; set key:"),
        ({"a": {"x": 1}}, "", "y", "a gives x; set key:"),
        ({"a": 1}, "", "x", "has no key x"),
        ({"a": "maybe"}, "", "", "'maybe', which is no reward"),
        ({"a": math.nan}, "", "", "nan, which is no reward"),
        ({"a": [1, 2]}, "", "", "[1, 2], which is no reward"),
        ({"a": None}, "", "", "None, which is no reward"),
    ],
)
def test_a_score_that_is_unclear_is_a_failure(
    scores: dict[str, Any], scorer: str, key: str, failure: str
) -> None:
    told = inspected.read_scores(scores, scorer, key)
    assert {*told} == {"failure"}
    assert failure in told["failure"]


def log(**sample: Any) -> SimpleNamespace:
    usual = {"error": None, "limit": None, "scores": {"match": SimpleNamespace(value="C")}}
    samples = [SimpleNamespace(**(usual | sample))]
    return SimpleNamespace(status="success", error=None, samples=samples)


def test_a_log_pays_its_sample_or_says_why_not() -> None:
    assert inspected.read_log(log(), "", "")["rewards"] == {"match": 1.0}
    cut = log(limit=SimpleNamespace(type="message"))
    assert inspected.read_log(cut, "", "")["rewards"] == {"match": 1.0}
    late = log(limit=SimpleNamespace(type="time"))
    assert "limit on time" in inspected.read_log(late, "", "")["failure"]
    broken = log(error=SimpleNamespace(message="scorer raised"))
    assert inspected.read_log(broken, "", "") == {"failure": "EvalError: scorer raised"}
    empty = log(scores=None)
    assert "has no score" in inspected.read_log(empty, "", "")["failure"]
    for status in ("error", "cancelled", "started"):
        ended = SimpleNamespace(status=status, error=None, samples=log().samples)
        assert inspected.read_log(ended, "", "") == {
            "failure": f"EvalError: its status is {status}"
        }


def test_a_command_that_fails_is_told_by_its_first_line() -> None:
    stderr = "docker: unknown command: docker compose\n\nRun 'docker --help' for more information\n"
    assert inspected.describe_failure(["docker", "compose", "version"], stderr) == (
        "docker compose version fails: docker: unknown command: docker compose"
    )


def test_compose_is_as_new_as_inspect_asks() -> None:
    for version in ("2.21.0", "v2.40.3-desktop.1", "2.21.0-rc1", "5.0.0"):
        assert inspected.find_compose_fault(version) == ""
    for version in ("2.20.3", "1.29.2", "v1.30", "", "unknown"):
        assert "install Docker's compose plugin" in inspected.find_compose_fault(version)


WHOLE = {"observation": {"echo": "hi"}, "done": False}


def test_answers_of_the_protocol_are_steps_and_errors() -> None:
    for data in (WHOLE, {**WHOLE, "reward": None, "novel": 1}):
        openenv.check_answer("step", {"type": "observation", "data": data})
    openenv.check_answer("step", {"type": "error", "data": {"code": "EXECUTION_ERROR"}})


@pytest.mark.parametrize(
    "answer",
    [
        ["observation"],
        {},
        {"type": "turn", "data": WHOLE},
        {"type": "observation", "data": {"observation": {}}},
        {"type": "observation", "data": {"done": True}},
        {"type": "observation", "data": None},
        {"type": "error", "data": "broken"},
    ],
)
def test_an_answer_of_another_protocol_is_no_step(answer: Any) -> None:
    with pytest.raises(RuntimeError, match=r"to step, which is no observation .*0\.2\.3 to 0\.10"):
        openenv.check_answer("step", answer)


@pytest.mark.parametrize(
    "wrong", [{"done": "false"}, {"done": None}, {"done": 1}, {"reward": "1"}, {"reward": [1]}]
)
def test_a_reward_or_an_end_that_would_be_a_guess_is_no_step(wrong: dict[str, Any]) -> None:
    answer = {"type": "observation", "data": {**WHOLE, "reward": 0.5, **wrong}}
    (value,) = wrong.values()
    with pytest.raises(RuntimeError, match=re.escape(repr(value)) + r".* a number or null"):
        openenv.check_answer("step", answer)


@pytest.mark.parametrize(
    ("kind", "ended", "words"),
    [
        ("step", {"reward": None}, "ended the episode with reward null.* 0 too"),
        ("step", {}, "ended the episode with reward null"),
        ("reset", {"reward": None}, "answered reset with done true"),
        ("reset", {"reward": 1.0}, "answered reset with done true"),
    ],
)
def test_an_end_of_openenv_that_was_not_played_or_paid_is_a_failure(
    kind: str, ended: dict[str, Any], words: str
) -> None:
    data = {"observation": {}, "done": True, **ended}
    with pytest.raises(RuntimeError, match=words):
        openenv.check_answer(kind, {"type": "observation", "data": data})
    openenv.check_answer(kind, {"type": "observation", "data": {**data, "done": False}})
    paid = {"type": "observation", "data": {"observation": {}, "done": True, "reward": 0}}
    openenv.check_answer("step", paid)


@pytest.mark.parametrize("line", ["", "}{ no", b"\xff\xfe\x00", "[" * 100_000])
def test_a_message_that_is_no_json_is_named(line: str | bytes) -> None:
    with pytest.raises(RuntimeError, match=r"the server answered .* to reset, which is no JSON"):
        openenv.read_answer("reset", line)


def fault(loc: list[Any], given: Any, type: str = "string_type") -> dict[str, Any]:
    return {"loc": loc, "input": given, "type": type, "msg": "wrong"}


@pytest.mark.parametrize(
    ("errors", "wrong"),
    [
        ([fault(["message"], [1])], "message: wrong"),
        ([fault(["text"], {"message": [1]}, "missing")], "text: wrong"),
        ([fault([], {"message": [1]})], "action: wrong"),
        ([fault(["message"], [1]), fault(["state"], 3)], None),
        ([fault(["message"], [2])], None),
        ([fault(["message", 5], 1)], None),
        ([{"loc": ["message"], "msg": "wrong"}], None),
        ([{"loc": ["message"], "input": [1]}], None),
        ([{"loc": 5, "input": [1], "msg": "wrong"}], None),
        (["wrong"], None),
        ([], None),
    ],
)
def test_a_fault_is_the_actions_where_its_input_stands_there(
    errors: list[dict[str, Any]], wrong: str | None
) -> None:
    error = {"code": "VALIDATION_ERROR", "errors": errors}
    assert openenv.find_faults({"message": [1]}, error) == wrong
    assert openenv.find_faults({"message": [1]}, {**error, "code": "EXECUTION_ERROR"}) is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"reward": "1"}, "the reward of task 'one' is '1'"),
        ({"reward": None}, "the reward of task 'one' is None"),
        ({"terminated": "False"}, "terminated of a step of task 'one' is 'False'; return True"),
        ({"truncated": None}, "truncated of a step of task 'one' is None; return True"),
    ],
)
def test_a_hosts_reward_and_ends_are_numbers_and_flags(wrong: dict[str, Any], words: str) -> None:
    env: ForeignEnv = GemEnv("game", python="python")
    env._task = Task(prompt="Play.", id="one")  # pyright: ignore[reportPrivateUsage]
    parse_step = env._parse_step  # pyright: ignore[reportPrivateUsage]
    whole = {"text": "seen", "reward": 0.5, "terminated": 0, "truncated": False}
    assert parse_step(whole)[1:4] == (0.5, False, False)
    with pytest.raises(EnvError, match=re.escape(words)):
        parse_step({**whole, **wrong})


def test_releases_are_compared_by_their_numbers() -> None:
    for newer in ("0.3.285", "0.10", "1", "0.3.275.dev1", "0.3.275rc1"):
        assert hosting.read_release(newer) >= hosting.read_release("0.3.275")
    for older in ("0.3.99", "0.3", "0.2.900", "", "unknown"):
        assert hosting.read_release(older) < hosting.read_release("0.3.275")
    assert hosting.read_release("0.4") == hosting.read_release("0.4.0")
    hosting.check_releases({"no-such-package": "1"})


@pytest.mark.parametrize("parts", [[b"one\ntwo\n"], [b"o", b"ne\ntw", b"o", b"\n"]])
def test_lines_are_split_wherever_they_arrive(parts: list[bytes]) -> None:
    splitter = hosting.LineSplitter()
    assert [line for part in parts for line in splitter.feed(part)] == [b"one", b"two"]
    assert splitter.feed(b"rest") == []
    assert splitter.feed(b"\n\n") == [b"rest", b""]


def test_a_line_beyond_the_limit_is_refused() -> None:
    splitter = hosting.LineSplitter()
    for _ in range(hosting.MESSAGE_BYTES // 2**20):
        splitter.feed(b"x" * 2**20)
    with pytest.raises(ValueError, match="a line of more than"):
        splitter.feed(b"x")
