"""The conformance suite: it passes what is sound, and each of its checks can fail.

Mutants seen caught: a template without an end waited for; a date taken for the time of day; an
escaped percent sign taken for one.
"""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.chat import template
from agentrl.chat.conformance import ConformanceVerdict, check_template
from agentrl.chat.dialects import DIALECTS, TEMPLATES
from agentrl.chat.tokenizer import train_tokenizer
from agentrl.errors import ConfigError


def tokenizer_of(name: str, folder: Path) -> PreTrainedTokenizerFast:
    texts = ["What is the weather in Oslo? It is raining."]
    return train_tokenizer(texts, vocab_size=300, folder=folder, template=name)


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return tokenizer_of("hermes", tmp_path_factory.mktemp("hermes"))


def failed(verdict: ConformanceVerdict) -> dict[str, str]:
    return {row.name: row.why for row in verdict.rows if not row.ok}


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_shipped_templates_pass(name: str, tmp_path: Path) -> None:
    verdict = check_template(tokenizer_of(name, tmp_path))
    assert failed(verdict) == {}
    assert verdict.ok
    assert len(verdict.rows) == 16


BROKEN: dict[str, tuple[str, str, set[str]]] = {
    "drops thinking": (
        "{{- \"<|im_start|>assistant\\n\" + said }}",
        '{{- "<|im_start|>assistant\\n" }}{{- message.content if loop.last else '
        'message.content.split("</think>\\n\\n")[-1] }}',
        {"append-only with earlier thinking"},
    ),
    "counts messages": (
        '{{- "<|im_start|>system\\n" + system }}',
        '{{- "<|im_start|>system\\n" ~ messages | length ~ system }}',
        {
            "append-only after a tool turn",
            "append-only after a plain turn",
            "append-only with earlier thinking",
            "incremental rendering",
        },
    ),
    "hides tools": ("tool | tojson", "'-'", {"shows tools"}),
    "hides answers": (
        '"\\n<tool_response>\\n" + shown(message.content)',
        '"\\n<tool_response>\\n"',
        {"shows calls and answers"},
    ),
    "drops the system message": (
        'shown(messages[0].content) if messages[0].role == "system" else ""',
        '""',
        {"takes a system message"},
    ),
    "trims": (
        "{{- \"<|im_start|>assistant\\n\" + said }}",
        "{{- \"<|im_start|>assistant\\n\" + said | trim }}",
        {"write gives the template's tokens"},
    ),
    "has no generation prompt": (
        "{%- if add_generation_prompt %}",
        "{%- if false %}",
        {"generation prompt", "incremental rendering"},
    ),
    "ends turns with words": (
        "<|im_end|>",
        "<|end|>",
        {"end of turn is one special token", "incremental rendering"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(BROKEN))
def test_faults_are_found(hermes: PreTrainedTokenizerFast, tmp_path: Path, fault: str) -> None:
    old, new, names = BROKEN[fault]
    source = DIALECTS["hermes"].template
    assert old in source
    path = tmp_path / "broken.jinja"
    path.write_text(source.replace(old, new), encoding="utf-8")
    earlier_turns = "sampled" if fault == "drops thinking" else "template"
    verdict = check_template(hermes, template=str(path), earlier_turns=earlier_turns)
    found = failed(verdict)
    assert not verdict.ok
    skipped = {name for name, why in found.items() if why.startswith("not checked")}
    assert found.keys() - skipped == names
    assert bool(skipped) == ("incremental rendering" in names)


def test_the_dropped_thought_is_shown(hermes: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    old, new, _ = BROKEN["drops thinking"]
    path = tmp_path / "broken.jinja"
    path.write_text(DIALECTS["hermes"].template.replace(old, new), encoding="utf-8")
    assert check_template(hermes, template=str(path)).ok
    verdict = check_template(hermes, template=str(path), earlier_turns="sampled")
    why = failed(verdict)["append-only with earlier thinking"]
    assert "<think>" in why
    assert "becomes 'assistant\\nWell." in why


def test_a_token_that_cannot_be_broken_is_reported(tmp_path: Path) -> None:
    """A control token of one character stays one wherever it stands."""
    tokenizer = tokenizer_of("hermes", tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["§"]})
    found = failed(check_template(tokenizer))
    assert found.keys() == {"content cannot become control tokens"}
    assert "'§'" in found["content cannot become control tokens"]


def test_tokens_that_reach_over_a_boundary_are_reported(tmp_path: Path) -> None:
    """Where nothing bounds an answer, its first token may reach into what precedes it."""
    tokenizer = train_tokenizer(["b: a"] * 9, vocab_size=300, folder=tmp_path)
    path = tmp_path / "glued.jinja"
    path.write_text(
        "{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
        "{{ '<|im_start|>' + m.content + '<|im_end|>b' }}"
        "{%- else -%}{{ ': a' + m.content }}{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>' }}{%- endif -%}"
    )
    found = failed(check_template(tokenizer, template=str(path)))
    assert "a reply alone has the tokens it has in place" in found


def test_a_template_without_tools_names_the_way_out(
    hermes: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """As that of SmolLM2 is."""
    path = tmp_path / "words.jinja"
    path.write_text(DIALECTS["hermes"].template.replace("if tools", "if false"), encoding="utf-8")
    why = failed(check_template(hermes, template=str(path)))["shows tools"]
    assert "is missing from the prompt; set policy.template to hermes, which fits this" in why


def test_wrong_dialect_is_found(hermes: PreTrainedTokenizerFast) -> None:
    found = failed(check_template(hermes, dialect="llama3"))
    assert found.keys() == {"write gives the template's tokens"}


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_that_does_not_end_is_refused(
    hermes: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "PROOF_S", 0.2)
    path = tmp_path / "endless.jinja"
    path.write_text(ENDLESS + DIALECTS["hermes"].template, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"endless\.jinja has not rendered .* within 0\.2 s"):
        check_template(hermes, template=str(path))


def test_a_template_that_shows_the_clock_is_told(
    hermes: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    path = tmp_path / "clock.jinja"
    source = DIALECTS["hermes"].template
    path.write_text("{{ strftime_now('%d %b %Y') }}" + source, encoding="utf-8")
    assert check_template(hermes, template=str(path)).ok
    path.write_text("{{ strftime_now('%d %b %H:%M') }}" + source, encoding="utf-8")
    found = failed(check_template(hermes, template=str(path)))
    for name in ("same at any time", "incremental rendering"):
        assert "it writes the time of day ('%d %b %H:%M')" in found[name]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{{ strftime_now('%Y-%m-%d') }}", ""),
        ('{{ strftime_now( "%S.%f" ) }}', "%S.%f"),
        ("{{ strftime_now('%B') }}{{ strftime_now('%-I %p') }}", "%-I %p"),
        ("{{ strftime_now('100 %%Hour') }}", ""),
        ("{{ strftime_now('%c') }}", "%c"),
        ("the time is %H:%M", ""),
    ],
)
def test_a_format_with_the_time_of_day_is_found(source: str, found: str) -> None:
    assert template.find_time_format(source) == found
