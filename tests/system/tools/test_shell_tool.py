"""The shell tool: what lives on from command to command, and what a command cannot break."""

import functools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.errors import SandboxError, ToolError
from agentrl.message import ToolCall
from agentrl.sandbox import Limits, RunResult, SandboxSettings, using_sandbox
from agentrl.testing.tool import check_tool
from agentrl.tool import ToolContext
from agentrl_tools import shell as shell_module
from agentrl_tools.python import NO_OUTPUT
from agentrl_tools.shell import TOO_LARGE, UNCHANGED, Shell, render

CONTEXT = ToolContext(task_id="t", sample=0, seed=0)
FAILED = "\n(exit code 1)"


@asynccontextmanager
async def opened(*, wall_s: float = 60.0) -> AsyncGenerator[Shell]:
    with using_sandbox(SandboxSettings(limits=Limits(wall_s=wall_s))):
        tool = Shell()
        await tool.open(CONTEXT)
        try:
            yield tool
        finally:
            await tool.close()


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    async with opened() as tool:
        yield tool


def told(status: str, **fields: object) -> RunResult:
    return functools.partial(RunResult, status=status)(**fields)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("result", "note", "text"),
    [
        (told("ok", exit_code=0), None, NO_OUTPUT),
        (told("ok", exit_code=0, stdout="a\n\n"), None, "a"),
        (told("ok", exit_code=2, stdout="a\n"), None, "a\n(exit code 2)"),
        (told("ok", exit_code=137), UNCHANGED, f"(exit code 137)\n{UNCHANGED}"),
        (told("ok", exit_code=0, stdout="a", truncated=True), None, "a\n(output was cut)"),
        (told("ok", exit_code=0, stdout="a\n", stderr="b"), None, "a\nb"),
        (told("timeout", stdout="a\n", error="late"), UNCHANGED, f"a\ntimeout: late\n{UNCHANGED}"),
    ],
)
def test_the_model_reads_what_is_there_and_nothing_else(
    result: RunResult, note: str | None, text: str
) -> None:
    assert render(result, note) == text


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        ("mkdir -p a/b && cd a/b", 'echo "${PWD#"$HOME"}"', "/a/b"),
        ("mkdir a && cd a", 'cd - >/dev/null; [[ $PWD == "$HOME" ]] && echo back', "back"),
        (
            "mkdir a b; pushd a >/dev/null; pushd ../b >/dev/null",
            "popd >/dev/null; basename $PWD; popd; ls",
            "a\n~\na\nb",
        ),
        ("x=1; export Y='2 3'", "echo $x $Y; bash -c 'echo \"<$x> <$Y>\"'", "1 2 3\n<> <2 3>"),
        ("declare -A m=([a b]=c); l=(1 '2 3')", 'echo "${m[a b]} ${l[1]} ${#l[@]}"', "c 2 3 2"),
        (
            "declare -i n=1; declare -n r=n; readonly k=9",
            "n+=2; echo $r; k=1; echo $k",
            "3\nbash: line 1: k: readonly variable" + FAILED,
        ),
        ("unset LANG; PS4=x", "echo ${LANG-none} $PS4", "none x"),
        ("f() { cat <<E\n$1 'x'\nE\n}; export -f f", "f 1; bash -c 'f 2'", "1 'x'\n2 'x'"),
        (
            'cd() { builtin cd "$@"; echo moved; }; printf() { echo p; }; set() { echo s; }',
            "cd .; unset -f cd; cd .; printf; set",
            "moved\np\ns",
        ),
        ("alias hi='echo hi there'", "hi you", "hi there you"),
        ("shopt -s extglob nullglob", "touch a.c b.d; echo !(*.c) x*", "b.d"),
        ("shopt -s nocasematch; random=1", "[[ A == a ]] && echo $random", "1"),
        (
            "set -u",
            "echo $nothing; echo on",
            "bash: line 1: nothing: unbound variable\n(exit code 127)",
        ),
        ("set -e", "false; echo on", "(exit code 1)"),
        ("set -x", "echo a", "++ echo a\na"),
        ("set -f -C; IFS=,", 'v=a,b; printf "<%s>" $v *', "<a><b><*>"),
        ("set -o posix", "shopt -qo posix && echo strict", "strict"),
        ("umask 027", "umask", "0027"),
        ("umask 777; v=1", "umask; echo $v", "0777\n1"),
        ("mkdir a b; cd a; cd ../b", "cd - >/dev/null; basename $PWD", "a"),
        ("mkdir a; ln -s a l; cd l", "basename $PWD", "l"),
        ("(exit 3)", "echo $?", "3"),
        ("v=1; exit 4", "echo $v $?", "1 4"),
        ("v=1; set -e; false; v=2", "echo $v", "1"),
        ("v=1; nosuch", "echo $v $?", "1 127"),
        ("v=1; kill -TERM $$", "echo $v", "1"),
        ("trap 'echo bye' EXIT; v=1", "echo $v", "1"),
        ("exec >log; v=1", "echo $v", "1"),
        ("v=1; echo 'open", "echo alive", "alive"),
        ("echo $(", "echo alive", "alive"),
        ("if true; then", "echo alive", "alive"),
        ("set -n", "echo alive", "alive"),
        ("set -t; v=1", "echo alive; echo $v", "alive\n1"),
    ],
)
async def test_one_command_goes_on_where_the_other_ended(
    shell: Shell, first: str, then: str, text: str
) -> None:
    await shell.shell(first)
    assert await shell.shell(then) == text


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo out; echo err >&2; echo out", "out\nerr\nout"),
        ("cat; read x || echo end", "end"),
        (
            "cat <<E\nopen",
            "bash: line 2: warning: here-document at line 1 delimited by end-of-file (wanted `E')"
            "\nopen",
        ),
        ("echo \"$(\necho '\"')\" # ' comment", '"'),
        (
            "echo 'a",
            "bash: eval: line 1: unexpected EOF while looking for matching `''\n(exit code 2)",
        ),
        ("exit 3", "(exit code 3)"),
        ("kill -9 $$", f"(exit code 137)\n{UNCHANGED}"),
        ("exec echo gone", f"gone\n{UNCHANGED}"),
        ("echo a\nnosuch", "a\nbash: line 2: nosuch: command not found\n(exit code 127)"),
        ("ls -A; echo *", "*"),
        ("trap 'echo D' DEBUG; :", "D"),
        ("echo $0 $# $SHLVL $-", "bash 0 1 hBc"),
        ("printf 'é\\377'", "é\ufffd"),
    ],
)
async def test_what_the_model_reads_of_a_command(shell: Shell, command: str, text: str) -> None:
    assert await shell.shell(command) == text


@pytest.mark.namespaces
async def test_a_timeout_kills_the_command_and_undoes_what_it_did_to_the_shell() -> None:
    for wall_s in (3.0, 30.0):  # a slow machine has the second try
        async with opened(wall_s=wall_s) as shell:
            before = await shell.shell("v=1; mkdir a b; cd a")
            text = await shell.shell("echo begun; v=2; cd ../b; sleep 600 & sleep 600")
            after = await shell.shell("echo $v; basename $PWD")
        if before == NO_OUTPUT and text.startswith("begun") and not after.startswith("timeout"):
            break
    else:
        pytest.fail(f"the commands did not get that far: {[before, text, after]}")
    assert text.startswith("begun\ntimeout: ")
    assert text.endswith(UNCHANGED)
    assert after == "1\na"


@pytest.mark.namespaces
async def test_a_program_in_the_background_runs_on_and_keeps_nobody_waiting(shell: Shell) -> None:
    started = "mkfifo go done; (read <go; echo late >done) & echo started"
    assert await shell.shell(started) == "started"
    assert await shell.shell("jobs; echo >go; cat done") == "late"


@pytest.mark.namespaces
async def test_a_directory_that_is_gone_is_said_once(shell: Shell) -> None:
    await shell.shell("mkdir a; cd a; rmdir ../a")
    gone = "(the working directory a is gone; the shell is in the top directory)"
    assert await shell.shell("echo here") == f"{gone}\nhere"
    assert await shell.shell("echo here") == "here"


@pytest.mark.namespaces
async def test_too_much_state_is_refused_and_nothing_else_is_lost(shell: Shell) -> None:
    big = shell_module.STATE_KIB_MAX * 2**10
    await shell.shell("v=1")
    assert await shell.shell(f"v=2; b=$(head -c {big} /dev/zero | tr '\\0' x)") == TOO_LARGE
    assert await shell.shell("echo $v${b-}") == "1"


@pytest.mark.namespaces
async def test_a_state_that_the_command_wrote_itself_is_bounded_too(shell: Shell) -> None:
    """Kills: a file of 64 MiB that is kept by the trainer and sent with every later command."""
    file = shell_module.STATE_FILE
    forged = f"printf '#%.0s' {{1..{shell_module.STATE_KIB_MAX * 2**10}}} >{file}"
    assert (
        await shell.shell(f"{forged}; printf '\\n# agentrl-1\\n' >>{file}; exec true") == TOO_LARGE
    )
    assert await shell.shell("echo alive") == "alive"


@pytest.mark.namespaces
async def test_deleting_every_file_costs_no_state(shell: Shell) -> None:
    await shell.shell("v=1; touch x")
    await shell.shell("rm -rf .[!.]* *")
    assert await shell.shell("echo $v; ls -A") == "1"


@pytest.mark.namespaces
async def test_a_state_that_cannot_be_written_is_said(shell: Shell) -> None:
    await shell.shell("v=1")
    assert await shell.shell(f"v=2; mkdir {shell_module.STATE_FILE}") == UNCHANGED
    assert await shell.shell(f"echo $v; rmdir {shell_module.STATE_FILE}") == "1"
    session = await shell.session()
    assert (await session.exec("import os; os.chmod('.', 0o555)")).ok
    assert await shell.shell("v=2; kill -9 $$") == f"(exit code 137)\n{UNCHANGED}"
    assert await shell.shell("echo $v; chmod 755 .") == "1"
    assert await shell.shell("v=2") == NO_OUTPUT
    assert await shell.shell("echo $v") == "2"


NAMES = st.from_regex(r"v_[A-Za-z0-9_]{0,8}", fullmatch=True)
VALUES = st.one_of(
    st.text(st.sampled_from("a \t\n'\"\\$`!*?[](){}<>&|;#~=é"), max_size=20).map(str.encode),
    st.binary(max_size=20).map(lambda value: value.replace(b"\0", b"")),
)


@pytest.mark.namespaces
@given(st.dictionaries(NAMES, VALUES, max_size=5), st.sampled_from(["", "export ", "readonly "]))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_value_lives_on_as_it_is(
    shell: Shell, values: dict[str, bytes], how: str
) -> None:
    """Each example is a fork's, so that what it makes read-only is nobody else's."""
    copy = await shell.fork()
    try:
        written = [f"printf -v {name} '{octal(value)}'" for name, value in values.items()]
        arrays = [f'a{name}=(1 "${name}")' for name in values]
        marked = [f"{how}{name}" for name in values if how]
        await copy.shell("\n".join([*written, *arrays, *marked, "true"]))
        shown = [f'printf "%s.%s" "${name}" "${{a{name}[1]}}" | od -An -v -tx1' for name in values]
        text = await copy.shell("\n".join([*shown, "true"]))
        got = bytes.fromhex("" if text == NO_OUTPUT else text)
        assert got == b"".join(value + b"." + value for value in values.values())
    finally:
        await copy.close()


def octal(value: bytes) -> str:
    return "".join(f"\\{byte:03o}" for byte in value)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))))
def test_a_command_is_handed_over_as_it_is(command: str) -> None:
    """Kills: quoting that a quote breaks."""
    import subprocess

    quoted = shell_module.build_script(command, state=b"", number=1).split(b"__agentrl_command=")[
        -1
    ]
    text = quoted.removesuffix(b"\n__agentrl_begin")
    ran = subprocess.run(
        ["bash", "-c", 'IFS= read -r -d \'\' s; eval "c=$s"; printf %s "$c"'],
        input=text,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert ran.stdout == command.encode()


@pytest.mark.namespaces
async def test_forks_go_their_own_way() -> None:
    async with opened() as one:
        await one.shell("v=1; mkdir a; cd a; f() { echo $v; }")
        other = await one.fork()
        await one.shell("v=2; cd ..; touch new")
        assert await other.shell("f; basename $PWD; ls ..") == "1\na\na"
        assert await one.shell("f; ls") == "2\na\nnew"
        await one.close()
        assert await other.shell("f") == "1"
        await other.close()


@pytest.mark.namespaces
async def test_it_keeps_a_tool_s_promises() -> None:
    commands = ("mkdir a; cd a; v=1", "((v += 1)); echo $v > f", "cat f; ls", "false", "echo $?")
    calls = [ToolCall(f"call_{n}", "shell", {"command": line}) for n, line in enumerate(commands)]
    proven = await check_tool(Shell, calls=calls)
    assert "forks do not interfere" in proven


@pytest.mark.namespaces
async def test_what_is_no_answer_raises() -> None:
    tool = Shell()
    with pytest.raises(SandboxError, match="not open"):
        await tool.shell("true")
    async with opened() as tool:
        for command in ("echo \0", "echo \ud800"):
            with pytest.raises(ToolError, match="command contains"):
                await tool.shell(command)
        await tool.shell("true")
        await (await tool.session()).close()
        with pytest.raises(SandboxError):
            await tool.shell("true")
