"""Every input that somebody else writes: its limit, where it is enforced, and the test of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from agentrl.chat.call_json import CALL_LIMITS, CALLS_MAX
from agentrl.engine.remote.frames import GREETING_LIMITS, HEAD_LIMITS
from agentrl.evaluation.endpoint.engine import TURN_LIMITS
from agentrl.gateway.bodies import BUDGET_BYTES
from agentrl.gateway.dialect import LARGEST_BYTES
from agentrl.gateway.server import HEAD_S
from agentrl.grading.artefacts import REFUSED_MAX
from agentrl.grading.calls import RESULT_BYTES
from agentrl.rollout.episode import CHARACTERS_PER_TOKEN, LONGEST_OBSERVATION
from agentrl.runtime.http_endpoint import ANSWER_LIMITS, REFUSAL_BYTES
from agentrl.runtime.image_decoding import FORMATS, MAX_BYTES, MAX_MARKERS, MAX_PIXELS
from agentrl.runtime.json_limits import DEFAULT_LIMITS
from agentrl_envs import MINIWOB_NAME_CHARACTERS
from agentrl_envs.adapters.host import ANSWER_LIMITS as HOST_LIMITS
from agentrl_envs.adapters.verdict_pool import MEMORY_BYTES
from agentrl_envs.blackbox.program import RESULT_BYTES as PROGRAM_BYTES
from agentrl_envs.gui import markup
from agentrl_envs.gui.inside.accessibility_tree import LEVELS_MAX
from agentrl_envs.gui.inside.server import FILE_BYTES, FILES_MAX, OUTPUT_BYTES
from agentrl_envs.gui.observation import DesktopObservationOptions as DesktopWants
from agentrl_envs.gui.osworld import metrics, tables
from agentrl_envs.reasoning.guard import MAX_ANSWER_CHARS
from agentrl_envs.web.browser import relay
from agentrl_envs.web.browser.context import DIALOGS, NOTICE_CHARACTERS, NOTICES
from agentrl_envs.web.browser.page import MAX_POPUPS, MAX_REQUESTS
from agentrl_envs.web.browser.traffic import MAX_BODY_BYTES
from agentrl_envs.web.env import URL_CHARACTERS
from agentrl_envs.web.observation import PageObservationOptions as PageWants
from agentrl_envs.web.sites.pages import BODY_BYTES_MAX
from agentrl_sandbox.inside.files import ENTRIES_PAGE
from agentrl_sandbox.inside.frames import FIGURE_BYTES_MAX, FIGURES_MAX
from agentrl_sandbox.interpreter_channel import TEXT_BYTES_MORE
from agentrl_tools.files import TEXT_BYTES_MAX
from agentrl_tools.search.search import QUERY_CHARS_MAX
from tests.system.security.table import row, write_table

BEGIN, END = "<!-- inputs: begin -->\n", "<!-- inputs: end -->\n"
HERE = "system/security/test_inputs"
PAGES = "system/security/test_browser_attacks"


LOOP, THREAD = "the loop", "a thread"
SESSION, BROWSER, RELAY = "the session", "the browser", "the relay's process"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input."""

    source: str
    """Its name, and who writes it."""
    limit: str
    over: str
    """The end of what is over the limit."""
    place: str
    """Path of the module that enforces it."""
    test: str
    """`file::name` below tests/. The loop is watched in it where the row is on the loop."""
    runs_in: str = LOOP
    """Where that module's work is done."""


def size(count: int) -> str:
    """Return bytes as people write them."""
    unit, name = (2**20, "MiB") if count >= 2**20 else (2**10, "KiB")
    return f"{count // unit} {name}"


def in_page(name: str) -> int:
    """Return a constant of the script that bounds pages from within."""
    script = files("agentrl_envs.web.browser").joinpath("limits.js").read_text(encoding="utf-8")
    found = re.search(rf"const {name} = (\d+)(?: \*\* (\d+))?;", script)
    assert found is not None, f"limits.js has no constant {name}"
    return int(found[1]) ** int(found[2] or 1)


def rows() -> Iterator[InputRow]:
    """Yield every input with the limits of the code."""
    envs, sandbox, tools = "envs/agentrl_envs", "sandbox/agentrl_sandbox", "tools/agentrl_tools"
    shown, desktop = PageWants(), DesktopWants()
    call, values = CALL_LIMITS, DEFAULT_LIMITS
    yield InputRow(
        "arguments of a tool call (policy)",
        f"{size(call.text_bytes)}, depth {call.depth}, {call.values} values, {CALLS_MAX} calls",
        "a malformed call",
        "agentrl/chat/call_json.py",
        "unit/chat/test_dialects.py::test_a_turn_has_so_many_calls",
    )
    yield InputRow(
        "words of a turn that an expression is searched in (policy)",
        "time in proportion to the text",
        "-",
        "every expression of the code",
        "system/test_linear_expressions.py::test_every_expression_is_linear",
        "each expression, timed alone",
    )
    yield InputRow(
        "an answer that a verifier reads (policy)",
        f"{MAX_ANSWER_CHARS} characters; a process of {size(MEMORY_BYTES)} with a deadline",
        "a wrong answer; a failure of the verifier",
        f"{envs}/reasoning/verifiers.py",
        "system/envs/reasoning/test_verifier_pool.py::test_a_late_verifier_is_killed_and_others_go_on",
        "a verifier's process",
    )
    yield InputRow(
        "text of an observation (environment, page, program)",
        f"{CHARACTERS_PER_TOKEN} characters for each token of `engine.context_tokens`, "
        f"{LONGEST_OBSERVATION:,} at most",
        "`outcome/truncated_observation`",
        "agentrl/rollout/episode.py",
        "unit/rollout/test_rollout.py::test_an_observation_that_cannot_fit_ends_the_trajectory_unread",
    )
    yield InputRow(
        "a picture (environment, program, page, endpoint)",
        f"{', '.join(FORMATS)}; {size(MAX_BYTES)}, {MAX_PIXELS} pixels, {MAX_MARKERS} markers",
        "a failed trajectory; 400 at the gateway",
        "agentrl/runtime/image_decoding.py",
        "unit/runtime/test_image_decoding.py::test_the_limit_of_pixels_is_read_from_the_head",
    )
    yield InputRow(
        "JSON (anybody)",
        f"{size(values.text_bytes)}, depth {values.depth}, {values.values} values, "
        f"{values.digits} digits, unless a row says otherwise",
        "refused in one sentence",
        "agentrl/runtime/json_limits.py",
        f"{HERE}.py::test_json_at_the_limits_leaves_the_loop_free",
    )
    yield InputRow(
        "markup that is typed into a page (policy)",
        "no scripts, no handlers, no addresses that run",
        "text; the page is thrown away",
        f"{envs}/web/miniwob/pages.py",
        "system/security/test_typed_markup.py::test_the_markup_is_there_and_does_nothing",
    )
    yield InputRow(
        "tree, texts and names of a page (page)",
        f"{shown.max_nodes} nodes, {shown.max_characters} characters, "
        f"{shown.max_name_characters} of a name or title "
        f"({MINIWOB_NAME_CHARACTERS} for MiniWoB++)",
        "cut, and counted in the text",
        f"{envs}/web/observation/look.py",
        "system/envs/web/test_look.py::test_a_cap_leaves_out_and_counts",
    )
    yield InputRow(
        "address, tabs and notices of a page (page)",
        f"{URL_CHARACTERS} characters of an address, {NOTICES} notices of {NOTICE_CHARACTERS}",
        "cut",
        f"{envs}/web/env.py",
        f"{PAGES}.py::test_a_page_with_too_much_of_something_is_alone_in_it",
    )
    yield InputRow(
        "bodies of requests, history, addresses (page)",
        f"{size(in_page('MOST_BYTES'))}, {in_page('MOST_ENTRIES')} entries, "
        f"{size(in_page('MOST_ADDRESS'))}",
        "an error in the page",
        f"{envs}/web/browser/limits.js",
        f"{PAGES}.py::test_a_page_with_too_much_of_something_is_alone_in_it",
        BROWSER,
    )
    yield InputRow(
        "requests that wait at once (page)",
        f"{MAX_REQUESTS}",
        "a failed episode",
        f"{envs}/web/browser/page.py",
        f"{PAGES}.py::test_a_page_with_too_much_of_something_is_alone_in_it",
    )
    yield InputRow(
        "dialogs and windows (page)",
        f"{DIALOGS} dialogs, {MAX_POPUPS} windows, `tabs` of the browser",
        "a failed episode; closed",
        f"{envs}/web/browser/context.py",
        f"{PAGES}.py::test_a_page_that_asks_without_end_is_given_up",
    )
    yield InputRow(
        "whatever a browser says: events, console, titles, frames (page)",
        f"{size(relay.MAX_EVENT_BYTES)} an event, {size(relay.MAX_REPLY_BYTES)} an answer, "
        f"{relay.BURST_EVENTS} events and {size(relay.BURST_BYTES)} at once for each page",
        "a failed episode",
        f"{envs}/web/browser/relay.py",
        "system/envs/web/test_relay.py::test_an_event_over_the_limit_is_the_crash_of_its_page",
        RELAY,
    )
    yield InputRow(
        "downloads (page)",
        "none",
        "refused",
        f"{envs}/web/browser/traffic.py",
        f"{PAGES}.py::test_nothing_is_downloaded",
    )
    yield InputRow(
        "answer of a site (site)",
        f"{size(MAX_BODY_BYTES)}, unpacked; gzip only",
        "502 to the page",
        f"{envs}/web/site.py",
        "system/envs/web/test_relay.py::test_a_packed_answer_is_unpacked_up_to_a_limit",
    )
    yield InputRow(
        "form sent to our sites (policy)",
        size(BODY_BYTES_MAX),
        "an empty form",
        f"{envs}/web/sites/pages.py",
        f"{HERE}.py::test_a_huge_form_is_an_empty_one",
    )
    yield InputRow(
        "accessibility tree and window titles of a desktop (program)",
        f"{desktop.max_nodes} elements, {LEVELS_MAX} levels, {desktop.max_characters} characters, "
        f"{desktop.max_name_characters} of a name",
        "cut, and counted in the text",
        f"{envs}/gui/observation.py",
        "unit/envs/gui/test_tree.py::test_what_is_too_much_is_counted",
        SESSION,
    )
    yield InputRow(
        "files, clipboard and output of a desktop (program)",
        f"{size(FILE_BYTES)} a file, {FILES_MAX} names, {size(OUTPUT_BYTES)} of output",
        "cut, or no file",
        f"{envs}/gui/inside/server.py",
        "system/security/test_desktop_attacks.py::test_files_that_wait_or_never_end_hold_nobody_up",
        SESSION,
    )
    yield InputRow(
        "workbook (policy)",
        f"{size(tables.MAX_BYTES)} packed and unpacked, {tables.MAX_PARTS} parts, "
        f"{tables.MAX_SHEETS} sheets, {markup.MAX_ELEMENTS} elements, depth {markup.MAX_DEPTH}",
        "no workbook",
        f"{envs}/gui/osworld/tables.py",
        f"{HERE}.py::test_workbooks_at_the_limits_leave_the_loop_free",
        THREAD,
    )
    yield InputRow(
        "text that a metric compares (policy)",
        f"{metrics.MAX_CHARACTERS} characters",
        "like nothing: 0",
        f"{envs}/gui/osworld/metrics.py",
        "unit/envs/gui/test_osworld_metrics.py::test_texts_over_a_limit_are_like_nothing",
        THREAD,
    )
    yield InputRow(
        "output of a cell or a command (session)",
        "`sandbox.limits.output_bytes`",
        "cut in the middle",
        f"{sandbox}/inside/output.py",
        "system/sandbox/test_limits.py::test_output_is_cut_in_the_middle_and_the_flood_costs_no_memory",
        SESSION,
    )
    yield InputRow(
        "frames and pictures on a session's wire (session)",
        f"`output_bytes` and {size(TEXT_BYTES_MORE)} for each text, {FIGURES_MAX} pictures of "
        f"{size(FIGURE_BYTES_MAX)}",
        "a violation",
        f"{sandbox}/interpreter_channel.py",
        "system/sandbox/test_protocol.py::test_a_forged_message_ends_the_interpreter_and_nothing_else",
    )
    yield InputRow(
        "names in a directory (session)",
        f"pages of {ENTRIES_PAGE}",
        "the next page",
        f"{sandbox}/inside/files.py",
        "system/grading/test_grading.py::test_names_of_any_bytes_and_number_cost_neither_the_session_nor_the_collection",
        SESSION,
    )
    yield InputRow(
        "files that are collected (session)",
        f"counts and sums of `collect`; {REFUSED_MAX} refusals are named",
        "refused, unread",
        "agentrl/grading/artefacts.py",
        "system/grading/test_grading.py::test_counts_and_sums_are_capped",
    )
    yield InputRow(
        "results that a checker reads (session)",
        size(RESULT_BYTES),
        "no result",
        "agentrl/grading/calls.py",
        "system/grading/test_grading.py::test_only_a_whole_verdict_counts",
    )
    yield InputRow(
        "file that a tool reads or edits (session)",
        f"{size(TEXT_BYTES_MAX)}; work in proportion to what is shown",
        "an answer with an error",
        f"{tools}/files.py",
        "system/tools/test_file_tools.py::test_what_is_cut_is_said_and_how_to_go_on",
    )
    yield InputRow(
        "query of a search (policy)",
        f"{QUERY_CHARS_MAX} characters",
        "an answer with an error",
        f"{tools}/search/search.py",
        "unit/tools/test_search.py::test_the_tools_say_what_they_find",
    )
    yield InputRow(
        "result of an MCP server (server)",
        "`message_bytes` at once, `result_chars` shown; structured content as JSON",
        "a failure; cut",
        f"{tools}/mcp/connection.py",
        "system/tools/test_mcp.py::test_a_message_over_the_limit_ends_the_connection",
    )
    yield InputRow(
        "body sent to the gateway (program)",
        f"{size(LARGEST_BYTES)} each, {size(BUDGET_BYTES)} together",
        "400; more wait",
        "agentrl/gateway/bodies.py",
        "system/gateway/test_gateway.py::test_bodies_that_are_none",
    )
    yield InputRow(
        "connections to the gateway (anybody who reaches it)",
        f"half of the files that the process may open, {HEAD_S:g} s for a request to begin",
        "the connection ends",
        "agentrl/gateway/server.py",
        "system/gateway/test_reach.py::test_a_connection_without_a_request_ends",
    )
    yield InputRow(
        "output of a program, which is its result (program)",
        size(PROGRAM_BYTES),
        "read and dropped",
        f"{envs}/blackbox/program.py",
        f"{HERE}.py::test_a_program_writes_a_result_up_to_the_limit",
    )
    yield InputRow(
        "greeting and frames at an engine's port (peer)",
        f"{size(GREETING_LIMITS.text_bytes)} before the key is proved, heads of "
        f"{size(HEAD_LIMITS.text_bytes)}",
        "the connection ends",
        "agentrl/engine/remote/frames.py",
        "system/engine/test_remote.py::test_a_greeting_that_makes_no_sense_ends_one_connection",
    )
    yield InputRow(
        "turn of an endpoint that is evaluated (server)",
        f"{size(TURN_LIMITS.text_bytes)}, unpacked; gzip only",
        "a failed request",
        "agentrl/evaluation/endpoint/engine.py",
        "system/evaluation/test_endpoint.py::test_a_turn_is_received_up_to_its_limit",
    )
    yield InputRow(
        "another answer of an endpoint, or an event of its stream (server)",
        f"{size(ANSWER_LIMITS.text_bytes)}, {ANSWER_LIMITS.values} values; "
        f"{size(REFUSAL_BYTES)} of a refusal, unpacked; gzip only",
        "a failed request",
        "agentrl/runtime/http_endpoint.py",
        "system/evaluation/test_endpoint.py::test_no_more_than_the_limit_is_received",
    )
    yield InputRow(
        "answer of an environment that lives in a process (environment)",
        f"{size(HOST_LIMITS.text_bytes)}, {HOST_LIMITS.values} values",
        "a failed trajectory",
        f"{envs}/adapters/host.py",
        "system/envs/adapters/test_host.py::test_an_answer_beyond_the_limits_is_a_failure_of_that_episode",
    )


def markdown() -> str:
    """Return the table."""
    head = ["input", "limit", "over it", "enforced in", "runs in"]
    cells = [[one.source, one.limit, one.over, _code(one.place), one.runs_in] for one in rows()]
    return "\n".join(map(row, [head, ["---"] * len(head), *cells])) + "\n"


def _code(place: str) -> str:
    return f"`{place}`" if "/" in place else place


if __name__ == "__main__":
    write_table(BEGIN, END, markdown())
