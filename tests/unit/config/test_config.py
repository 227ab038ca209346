"""Config files, overrides and their errors.

Mutants seen caught: duplicate keys passed; the first problem only; an override that keeps the keys
of the method it replaces; `1e-3` read as text; a base laid over its file; strict mode off.
"""

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.document import ConfigDocument, dump, parse_value, read
from agentrl.config.learn import LearnSection
from agentrl.config.learning.correction import NoCorrection, TruncatedCorrection
from agentrl.config.load import load_config, save_resolved
from agentrl.config.run import RunConfig
from agentrl.config.schema import describe_values, keys, plain
from agentrl.config.section import ConfigSection
from agentrl.errors import ConfigError

MINIMAL = "env: {id: demo/Multiply-v0}\n"


def write(folder: Path, text: str, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, overrides: list[str] | dict[str, Any] = []) -> str:  # noqa: B006
    """Return the error a config gets, without the folder it lies in."""
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text), overrides)
    said = str(caught.value).replace(f"{folder}/", "")
    assert "pydantic" not in said.lower()
    assert "input_value" not in said
    return said


def test_a_minimal_file_is_a_whole_run(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL))
    assert config.env.id == "demo/Multiply-v0"
    assert config == RunConfig(env=config.env)


def test_overrides_are_text_or_a_mapping_and_the_last_one_wins(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    text = load_config(path, ["run.steps=3", "env.kwargs.a=[1, 2]", "run.steps=4", "warmstart={}"])
    mapping = load_config(
        path, {"run.steps": 4, "env.kwargs": {"a": [1, 2]}, "warmstart": {}, "evaluate.k": (1,)}
    )
    assert text == mapping
    assert (text.run.steps, text.env.kwargs) == (4, {"a": [1, 2]})
    assert load_config(path, {"run.folder": tmp_path}).run.folder == tmp_path


def test_overrides_are_laid_over_a_loaded_config(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL)
    loaded = load_config(file)
    changes = ["run.steps=3", "learn.advantage.name=gae", "learn.critic={}"]
    assert load_config(loaded, changes) == load_config(file, changes)
    assert load_config(loaded) is loaded
    with pytest.raises(ConfigError, match="did you mean run"):
        load_config(loaded, ["run.stepz=3"])


def test_an_override_opens_a_section_and_null_closes_it(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    opened = load_config(path, ["warmstart.steps=7"])
    assert opened.warmstart is not None
    assert opened.warmstart.steps == 7
    assert load_config(path, ["warmstart.steps=7", "warmstart=null"]).warmstart is None


def test_an_override_of_a_text_key_stays_text(tmp_path: Path) -> None:
    """`run.name=001` is a name, not the number 1."""
    path = write(tmp_path, MINIMAL)
    for name in ("001", "1e3", "true", "1.50"):
        assert load_config(path, [f"run.name={name}"]).run.name == name
    assert load_config(path, ['run.name="quoted"']).run.name == "quoted"
    assert load_config(path, ["env.id=a=b: c"]).env.id == "a=b: c"


def test_a_file_says_all_that_is_wrong_with_it_at_once(tmp_path: Path) -> None:
    said = refusal(
        tmp_path,
        "env: {id: demo/Multiply-v0}\n"
        "run: {steps: -1, steps: 5, seed: '7'}\n"
        "rollout:\n"
        "  grup_size: 4\n"
        "  max_turns: 2.5\n"
        "learn: {correction: {name: tsi}}\n",
        ["metrics.tensorboard=yes"],
    )
    assert said.splitlines()[0] == "x.yaml: 6 problems"
    for wanted_line in (
        "x.yaml:2: run.steps is set twice, first on line 2; remove one of them",
        'x.yaml:2: run.seed is "7", expected a whole number, at least 0; write it without quotes '
        "(seed: Seed of all random choices of the run.)",
        "x.yaml:4: rollout.grup_size is not a key; did you mean rollout.group_size? "
        "Keys of rollout: alarms, backlog, branching, ",
        "x.yaml:5: rollout.max_turns is 2.5, expected a whole number, more than 0 "
        "(max_turns: Maximum number of policy messages per trajectory.)",
        "x.yaml:6: learn.correction.name is tsi, expected one of",
        "override metrics.tensorboard=yes: metrics.tensorboard is yes, expected true or false; "
        "write true",
    ):
        assert wanted_line in said


BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(5)
)
"""Anchors of anchors: five times ten."""
DEEP = "a0: &a0 [x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} {'[' * 90}*a{n}{']' * 90}\n" for n in range(30)
)
"""Anchors of anchors: thirty times ninety levels."""
LONG = f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 600)}]"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("view: {redact: ['(']}", "x.yaml:2: view.redact: '(' is not a valid regular"),
        ("seed: 3", "x.yaml:2: seed is not a key; did you mean run.seed? Keys of a config: "),
        ("lern: {}", "lern is not a key; did you mean learn?"),
        ("run: {zzz: 1}", "x.yaml:2: run.zzz is not a key; keys of run: checkpoint_every"),
        ("run: 3", "run is 3, expected a section (run: Name, folder, and"),
        ("run: {name: 5}", 'run.name is 5, expected text, matching ^[\\w.-]*[\\w-]'),
        ("run: {name: ..}", "x.yaml:2: run.name is .., expected text, matching"),
        (f"run: {{name: {'ä' * 128}}}", "x.yaml:2: run.name: 256 bytes, but a folder name may"),
        (f"a: {'[' * 20_000}{']' * 20_000}", "x.yaml:2: not valid YAML: more than 100 levels"),
        (f"a: {'{b: ' * 3_000}{'}' * 3_000}", "x.yaml:2: not valid YAML: more than 100 levels"),
        (f"run: {{seed: {'9' * 5_000}}}", "x.yaml:2: run.seed is a number of 5000 digits"),
        ('run: {name: "a\\ud800"}', "x.yaml:2: run.name is a text with a lone surrogate"),
        ("run: {name: a\0b}", "not valid YAML: unacceptable character #x0000"),
        (f"# {'x' * 5_000_000}", "x.yaml has more than 4,194,304 characters, the maximum"),
        ("run: {steps: true}", "run.steps is true, expected a whole number, at least 0"),
        ("run: {steps: 1e3}", "run.steps is 1000.0, expected a whole number, at least 0; write"),
        ("run: {steps: null}", "run.steps is null, expected a whole number, at least 0; remove"),
        ("sampling: {temperature: .nan}", "temperature is NaN, expected a number, at least 0"),
        ("evaluate: {threshold: .nan}", "evaluate.threshold is NaN, expected a number (threshold"),
        ("evaluate: {k: [1, 0]}", "evaluate.k.1 is 0, expected a whole number, more than 0"),
        ("evaluate: {k: 1}", "evaluate.k is 1, expected a list, each a whole number, more than 0"),
        ("learn: {optimizer: {betas: [1]}}", "betas is [1], expected a list of 2: a number"),
        ("learn: {optimizer: {betas: [1, 2, 3]}}", "betas is [1, 2, 3], expected a list of 2"),
        ("learn: {loss: {dual_clip: 1}}", "dual_clip is 1, expected a number, more than 1, or"),
        ("learn: {correction: {name: none, cap: 2}}", "Keys of learn.correction (name: none): n"),
        ("policy: {dtype: float64}", "policy.dtype is float64, expected one of float32, bfloat16"),
        ("? [1, 2]\n: 3", "x.yaml:2: a key is a list, but keys must be text"),
        ("1: 2", "the key 1 is a number, but keys must be text; put it in quotes"),
        ("run: {when: !!timestamp 2020-01-01}", "x.yaml:2: run.when is !!timestamp, but a con"),
        ("env:\n  kwargs:\n    x: !!set {a}", "x.yaml:4: env.kwargs.x is !!set, but a con"),
        ("env: {kwargs: {x: [1, !!binary aGk=]}}", "x.yaml:2: env.kwargs.x.1 is !!binary, but"),
        ("run: {steps: !!int x}", "x.yaml:2: run.steps is 'x', expected a number"),
        ("run: {steps: !!bool x}", "x.yaml:2: run.steps is 'x', expected true or false"),
        ("run: &a {x: *a}", "the anchor refers to itself; expand it by hand"),
        (LONG, "x.yaml: with anchors expanded it has"),
        (BOMB, "x.yaml: with anchors expanded it has 234578 keys and values, and a config"),
        (DEEP, "x.yaml: with anchors expanded it has 2702 levels of nesting, and a config"),
        ("run: {steps: 010}", 'run.steps is "010", expected a whole number, at least 0 (steps'),
        ("rollout: {alarms: {thresholds: {tol: 1}}}", "thresholds.tol is not a key; expected one"),
        ("rollout: {alarms: {thresholds: {env: x}}}", "env is x, expected a number, at least 0"),
        ("rollout: {alarms: {thresholds: {env: 20}}}", "env is 20, expected a number, at leas"),
        ("run: {steps: 1", "x.yaml:3: not valid YAML"),
        ("run: !!python/object:os.system {}", "x.yaml:2: run is !!python/object:os.system,"),
    ],
)  # fmt: skip
def test_a_wrong_line_names_place_value_and_rule(tmp_path: Path, line: str, says: str) -> None:
    assert says in refusal(tmp_path, f"{MINIMAL}{line}\n")


def test_a_missing_key_says_what_it_is_for(tmp_path: Path) -> None:
    said = refusal(tmp_path, "run: {steps: 1}\n")
    assert said == (
        "x.yaml: env is missing: Environment in which the policy acts. Set it, such as "
        "`env.id: ...` or env.id=..."
    )
    assert "env.id is missing: Registered id" in refusal(tmp_path, "env: {}\n")


def test_a_missing_file_lists_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, MINIMAL, "quickstart.yaml")
    write(tmp_path, MINIMAL, "other.yml")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "quikstart.yaml")
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'quikstart.yaml'}: this config file does not exist; ")
    assert said.endswith("quickstart.yaml, other.yml")
    with pytest.raises(ConfigError, match="is a folder, not a config file; YAML files in"):
        load_config(tmp_path)
    (tmp_path / "empty" / "folder.yaml").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"there is no YAML file in .*agentrl init NAME"):
        load_config(tmp_path / "empty" / "x.yaml")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"- 1\n", "expected a mapping of keys at the top level, got a list"),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        load_config(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.steps", "'run.steps' is not an override, because it has no '='; write key=value"),
        ("run.name=\udcff", "override 'run.name=\\udcff' is not valid utf-8; check the bytes"),
        ("run..steps=1", "'run..steps' has an empty part; write a.b=c"),
        ("run.steps=[1", "override run.steps=[1: '[1' is not a YAML value"),
        ("env.kwargs=&a {x: *a}", "kwargs=&a {x: *a}: line:1: the anchor refers to itself; expand"),
        ("env.kwargs={x: 1, x: 2}", "env.kwargs={x: 1, x: 2}: x is set twice, first on line 1"),
        ("env.kwargs={1: 2}", "the key 1 is a number, but keys must be text; put it in quotes"),
        ("env.kwargs.x=!!set {a}", "'!!set {a}' is not a YAML value: !!set, but a config holds"),
        ("run.stepz=1", "override run.stepz=1: run.stepz is not a key; did you mean run.steps?"),
        ("evaluate.k.0=2", "evaluate.k is a list (x.yaml:2), and single items of a list cannot"),
    ],
)
def test_a_wrong_override_is_shown_as_it_was_written(
    tmp_path: Path, override: str, says: str
) -> None:
    assert says in refusal(tmp_path, f"{MINIMAL}evaluate: {{k: [1]}}\n", [override])


def test_an_override_that_no_file_could_hold_is_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, MINIMAL, {"env.kwargs": {"reward": print}})
    assert "override env.kwargs is" in said
    assert "a config holds only YAML values" in said
    with pytest.raises(ConfigError, match=r"expected a list; write \['run.steps=1'\]"):
        load_config(write(tmp_path, MINIMAL), "run.steps=1")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("policy: {path: m, make: {}}", "policy.path is m and policy.make is also set"),
        ("policy: {dtype: float32}", "neither policy.path nor policy.make is set"),
        ("policy: {make: {heads: 4, kv_heads: 3}}", "make heads a multiple of kv_heads"),
        ("policy: {make: {head_dim: 3}}", "policy.make.head_dim is 3"),
        (
            "rollout: {backlog: 1}",
            "rollout.backlog is 1, but it has no effect with rollout.mode: sync",
        ),
        ("rollout: {mode: async, backlog: 2}", "backlog is 2 and rollout.max_staleness is 1: b"),
        (
            "rollout: {mode: async, max_staleness: 3, backlog: 3, max_start_lag: 2, max_age: 2}",
            "rollout.backlog is 3 and rollout.max_start_lag is 2",
        ),
        (
            "rollout: {mode: async, max_staleness: 3, backlog: 3, max_age: 2}",
            "rollout.backlog is 3 and rollout.max_age is 2: batches at the end of the backlog",
        ),
        ("evaluate: {k: [1, 4], samples_per_task: 2}", "raise evaluate.samples_per_task to 4"),
        ("evaluate: {k: []}", "evaluate.k is an empty list"),
        ("engine: {context_tokens: 256}", "sampling.max_turn_tokens is 256 and engine.context_t"),
        ("sandbox: {backend: process}", "sandbox.allow_unisolated: true"),
        ("learn: {minibatches: 65}", "a step has 64 trajectories"),
        ("learn: {micro_batch_tokens: 1023}", "must fit in one forward pass"),
        ("warmstart: {recordings: mine.jsonl, guess_fraction: 0.5}", "are both set"),
        ("warmstart: {steps: 9, until_loss: 0.5}", "mean loss of 10 steps, but warmstart.steps=9"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(tmp_path: Path, lines: str, says: str) -> None:
    assert says in refusal(tmp_path, f"{MINIMAL}{lines}\n")


def test_keys_on_the_edge_of_a_rule_are_taken(tmp_path: Path) -> None:
    edge = (
        "evaluate: {k: [1, 2], samples_per_task: 2}\n"
        "engine: {context_tokens: 257}\n"
        "learn: {minibatches: 64}\n"
        "sandbox: {backend: process, allow_unisolated: true}\n"
    )
    assert load_config(write(tmp_path, MINIMAL + edge)).learn.minibatches == 64


def test_a_base_lies_under_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    write(tmp_path / "base", "run: {steps: 1, seed: 2}\nenv: {id: a/B-v0}\n", "a.yaml")
    write(tmp_path, "base: base/a.yaml\nrun: {steps: 3}\nenv: {kwargs: {n: 1}}\n", "b.yaml")
    path = write(tmp_path, "base: b.yaml\nrun: {threads: 2}\n", "c.yaml")
    config = load_config(path, ["run.seed=9"])
    assert (config.run.steps, config.run.seed, config.run.threads) == (3, 9, 2)
    assert (config.env.id, config.env.kwargs) == ("a/B-v0", {"n": 1})


def test_a_problem_in_a_base_names_the_base(tmp_path: Path) -> None:
    write(tmp_path, "run: {stebs: 1}\n", "base.yaml")
    assert refusal(tmp_path, f"base: base.yaml\n{MINIMAL}").startswith("base.yaml:1: run.stebs")
    said = refusal(tmp_path, f"base: gone.yaml\n{MINIMAL}")
    assert "gone.yaml: this config file does not exist" in said
    assert "(named by `base:` in x.yaml:1)" in said
    assert "x.yaml is its own base" in refusal(tmp_path, f"base: x.yaml\n{MINIMAL}")
    assert "base is 3, expected the path" in refusal(tmp_path, f"base: 3\n{MINIMAL}")


def test_a_change_of_method_leaves_no_key_of_the_old_one_behind(tmp_path: Path) -> None:
    write(tmp_path, f"{MINIMAL}learn: {{correction: {{name: tis, cap: 5}}}}\n", "base.yaml")
    kept = load_config(write(tmp_path, "base: base.yaml\nlearn: {correction: {level: sequence}}\n"))
    assert kept.learn.correction == TruncatedCorrection(level="sequence", cap=5)
    for changed in (
        load_config(write(tmp_path, "base: base.yaml\nlearn: {correction: {name: none}}\n")),
        load_config(tmp_path / "base.yaml", ["learn.correction.name=none"]),
    ):
        assert changed.learn.correction == NoCorrection()


def test_a_method_that_is_not_named_is_the_default_one(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL), ["learn.correction.cap=3"])
    assert config.learn.correction == TruncatedCorrection(cap=3)


def test_the_resolved_config_is_complete_and_loads_to_the_same(tmp_path: Path) -> None:
    text = (
        "env: {id: a/B-v0, kwargs: {text: '1e-3', no: 'no', when: 2020-01-01, deep: [{a: null}]}}\n"
        "learn: {optimizer: {learning_rate: 1e-7}, correction: {cap: .inf}}\n"
        "warmstart: {steps: 10, until_loss: 0.5}\n"
    )
    config = load_config(write(tmp_path, text))
    saved = tmp_path / "config.yaml"
    save_resolved(config, saved)
    assert load_config(saved) == config
    written = read(saved).values
    # What is below a section that may be off, or below one of several methods.
    chosen = tuple(
        f"{key.path}."
        for key in keys(RunConfig)
        if key.sections and (key.default in ("null", "[]") or len(key.sections) > 1)
    )
    assert "learn.loss." in chosen
    assert "rollout.branching." not in chosen
    for key in keys(RunConfig):
        at: Any = written
        for part in key.path.split("."):
            at = at[part] if isinstance(at, dict) and part in at else None
            if at is None:
                break
        always = not key.path.startswith(chosen)
        assert not always or at is not None or key.default == "null", key.path


def test_a_resolved_config_with_recordings_loads_again(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, f"{MINIMAL}warmstart: {{recordings: mine.jsonl}}\n"))
    save_resolved(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config


def test_every_default_obeys_its_own_rules() -> None:
    """Pydantic is told not to look at defaults, see `ConfigSection`."""
    for key in keys(RunConfig):
        for section in key.sections:
            if not any(field.is_required() for field in section.model_fields.values()):
                assert section.model_validate(plain(section())) == section()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]))
    | st.sampled_from(["1e-3", "no", "yes", "1_000", "0x1f", "007", "1:30", "~", "null", ".5", ""])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_dumped_is_read_back_the_same(value: object) -> None:
    """Kills: a dumper that leaves `1e-3` unquoted, since PyYAML takes it for text."""
    assert parse_value(dump({"key": value})) == {"key": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("3.", 3.0),
        ("-.inf", float("-inf")),
        ("1_000", 1000),
        ("0x1f", 31),
        ("+7", 7),
        ("no", "no"),
        ("on", "on"),
        ("12:30:00", "12:30:00"),
        ("2020-01-01", "2020-01-01"),
        ("007", "007"),
        ("1e", "1e"),
        ("true", True),
        ("~", None),
        ("", None),
    ],
)
def test_plain_values_mean_what_they_look_like(text: str, value: object) -> None:
    found = parse_value(text)
    assert (type(found), found) == (type(value), value)


def test_an_origin_is_the_key_then_what_is_in_it_then_what_is_around_it() -> None:
    document = ConfigDocument({}, {("a",): "1", ("a", "b", "c"): "2"})
    assert document.origin(("a", "b", "c")) == "2"
    assert document.origin(("a", "b")) == "2"
    assert document.origin(("a", "x", "y")) == "1"
    assert document.origin(("z",)) == ""


def test_every_shipped_config_loads(root: Path) -> None:
    paths = sorted((root / "configs").rglob("*.yaml"))
    assert paths
    for path in paths:
        assert isinstance(load_config(path), ConfigSection)


def test_types_are_said_in_words() -> None:
    assert describe_values(int | None) == "a whole number or null"
    assert describe_values(list[str]) == "a list, each text"
    assert describe_values(tuple[int, str]) == "a list of 2: a whole number, text"
    assert describe_values(dict[str, int]) == "a mapping"


ALONE = {
    "grpo": True,
    "arpo": True,
    "aepo": True,
    "tree_grpo": True,
    "tree_rl": True,
    "branch_grpo": True,
    "rloo": True,
    "reinforce_pp_baseline": True,
    "ui_s1": True,
    "mc_grpo": True,
    "gapo": True,
    "xrpo": True,
    "echo": True,
    "milestones": True,
    "nudge": True,
    "poise": True,
    # Turns of one trajectory, returns, and values of a critic.
    "gigpo": False,
    "reinforce_pp": False,
    "segment_reinforce": False,
}
"""Methods of advantages, and whether a group of one gets nothing from them."""


@pytest.mark.parametrize("name", ALONE)
def test_a_group_of_one_has_nobody_to_be_compared_with(tmp_path: Path, name: str) -> None:
    keys = ["rollout.group_size=1", f"learn.advantage.name={name}"]
    if not ALONE[name]:
        assert load_config(write(tmp_path, MINIMAL), keys).rollout.group_size == 1
        return
    said = refusal(tmp_path, MINIMAL, keys)
    assert f"rollout.group_size is 1 and learn.advantage.name is {name}, which compares" in said
    assert "Raise rollout.group_size, to 8" in said
    if name in ("mc_grpo", "branch_grpo", "milestones", "nudge", "poise"):
        assert "singleton" not in said
        return
    assert load_config(write(tmp_path, MINIMAL), [*keys, "learn.advantage.singleton=raw"])


def test_only_what_compares_is_said_of_a_group_of_one() -> None:
    """Every method of the slot is in the table above, `gae` and one's own aside."""
    annotated = get_args(get_args(LearnSection.model_fields["advantage"].annotation)[0])
    kinds = annotated or get_args(LearnSection.model_fields["advantage"].annotation)
    names = {kind.model_fields["name"].default for kind in kinds}
    assert names == {*ALONE, "gae", "custom"}
