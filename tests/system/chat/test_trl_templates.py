"""Every chat template that TRL ships: usable, or excused by name; docs/chat.md has the table."""

import re
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl.chat.conformance import ConformanceVerdict, check_template
from agentrl.chat.tokenizer import train_tokenizer

pytestmark = pytest.mark.trl_templates

PLACE = Path(__file__).parents[3] / ".bench/trl_templates/trl/chat_templates"
REFUSED = {
    "lfm2": "leaves earlier calls out, so nothing tells how they are written",
    "lfm2_training": "leaves earlier calls out, so nothing tells how they are written",
    "muse_glimmer": "a call stands behind a recipient, in tags of its own",
    "muse_glimmer_training": "a call stands behind a recipient, in tags of its own",
}
"""Templates that are refused, and why; each is refused in words that say so."""
TOKENS = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<\uff5c[^\uff5c<>\s]{1,40}\uff5c>|<\|?(?:turn|channel|tool_call)\|?>"
    r"|<\|?(?:tool|tool_response|think|\")\|?>|<(?:bos|eos|start_of_turn|end_of_turn)>"
    r"|<end_of_utterance>|\[gMASK\]|<sop>"
)
NO_TOKENS = {"<tool_call>", "<tool_response>", "<think>", "<tool>"}
"""Written by some templates as text."""
ENDS = (
    "<|im_end|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
    "<eos>",
)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ConformanceVerdict]:
    return {
        file.stem: check_template(tokenizer_of(file.read_text(), tmp_path_factory.mktemp("t")))
        for file in sorted(PLACE.glob("*.jinja"))
    }


def tokenizer_of(source: str, folder: Path) -> PreTrainedTokenizerFast:
    """Return a small tokenizer with the special tokens that a template writes."""
    tokenizer = train_tokenizer(["It is raining in Oslo."], vocab_size=300, folder=folder)
    special = sorted({*TOKENS.findall(source), "<s>", "</s>", "<bos>", "<eos>"} - NO_TOKENS)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.bos_token = "<s>"
    tokenizer.eos_token = next((token for token in ENDS if token in source), "</s>")
    tokenizer.chat_template = source
    return tokenizer


def outcome(verdict: ConformanceVerdict) -> tuple[str, str]:
    """Return the dialect, and how a template can be used."""
    rows = {row.name: row for row in verdict.rows}
    rendering = rows["incremental rendering"]
    if not rendering.ok:
        return "", "refused"
    dialect = rendering.why.removeprefix("dialect ")
    tools = rows["shows tools"].ok and rows["append-only after a tool turn"].why
    return (f"`{dialect}`", "tools") if tools else ("", "words")


def test_every_template_is_used_or_excused(verdicts: dict[str, ConformanceVerdict]) -> None:
    refused = {name for name, verdict in verdicts.items() if outcome(verdict)[1] == "refused"}
    assert len(verdicts) == 72
    assert refused == REFUSED.keys()
    for name in refused:
        (why,) = [r.why for r in verdicts[name].rows if r.name == "incremental rendering"]
        assert "no dialect can parse" in why or "omits the calls of earlier turns" in why


def test_the_documentation_holds_the_table(
    verdicts: dict[str, ConformanceVerdict], root: Path
) -> None:
    """When this fails: paste what `table` returns between the two marks."""
    text = (root / "docs" / "chat.md").read_text(encoding="utf-8")
    held = text.partition("<!-- trl: begin -->\n")[2].partition("<!-- trl: end -->")[0]
    assert held.strip() == table(verdicts)


def table(verdicts: dict[str, ConformanceVerdict]) -> str:
    """Return the table of docs/chat.md: templates of the same outcome in a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, verdict in verdicts.items():
        dialect, use = outcome(verdict)
        why = f"refused: {REFUSED[name]}" if name in REFUSED else use
        rows.setdefault((dialect, why), []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {use} | {d} |" for (d, use), names in rows.items()]
    return "\n".join(["| templates | used for | dialect |", "| --- | --- | --- |", *lines])
