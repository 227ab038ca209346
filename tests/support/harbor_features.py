"""A task folder for each feature of Harbor's format, in words of our own.

The format's public examples set these fields: an old file with sizes as text, a user, a directory,
a health check, skills, a server of tools (MCP), several steps, a GPU, Windows, a verifier apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl_sandbox.recipe import BASE
from tests.support.harbor_tasks import write_task

IMAGE = f'docker_image = "{BASE}"\ncpus = 1\nmemory_mb = 256\n'
_DONE = "#!/bin/bash\ntouch /tmp/done\n"


def checked(condition: str) -> str:
    """Return a verifier that pays 1 where a condition of bash holds."""
    return f"#!/bin/bash\nif {condition}; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborFeature:
    """A feature, and a task that needs it."""

    toml: str
    test: str = checked("[ -e /tmp/done ]")
    solve: str = _DONE
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    refused: str = ""
    """What its refusal says; empty where it is played."""
    network: str = "none"
    """Setting with which it is refused."""

    def write(self, folder: Path) -> Path:
        """Write the task and return its folder."""
        write_task(folder, toml=self.toml, test=self.test, solve=self.solve)
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder


FEATURES: Mapping[str, HarborFeature] = {
    "an old file": HarborFeature(
        toml='version = "1.0"\n[metadata]\nauthor_name = "A. Writer"\ntags = ["trivial"]\n'
        "[verifier]\ntimeout_sec = 120.0\n[agent]\ntimeout_sec = 120.0\n"
        '[environment]\nbuild_timeout_sec = 600.0\ncpus = 1\nmemory = "1G"\nstorage = "10G"\n'
        "allow_internet = true\n",
        files={"environment/Dockerfile": f"FROM {BASE}\nWORKDIR /app\n"},
        test=checked('[ "$(cat /app/hello.txt)" = "hello, harbour" ]'),
        solve="#!/bin/bash\necho 'hello, harbour' >hello.txt\n",
    ),
    "a user": HarborFeature(
        toml=f'[agent]\nuser = "clerk"\n[environment]\n{IMAGE.partition(chr(10))[2]}',
        files={
            "environment/Dockerfile": f"FROM {BASE}\nRUN /usr/sbin/useradd -m clerk\n"
            "WORKDIR /home/clerk\n"
        },
        test=checked('[ "$(cat /home/clerk/me)" = clerk ] && ! [ -O /home/clerk/me ]'),
        solve="#!/bin/bash\nid -un >me\n",
    ),
    "a directory": HarborFeature(
        toml=f'[environment]\n{IMAGE}workdir = "/var/tmp"\n',
        files={"environment/note.txt": "put here"},
        test=checked("[ -e /var/tmp/copy ] && cmp note.txt copy"),
        solve="#!/bin/bash\ncp note.txt copy\n",
    ),
    "a health check": HarborFeature(
        toml=f"[environment]\n{IMAGE}[environment.healthcheck]\n"
        'command = "test -e /tmp/up || { touch /tmp/up; exit 1; }"\n'
        "start_period_sec = 60.0\nstart_interval_sec = 0.1\nretries = 1\n",
        test=checked("[ -e /tmp/done ] && [ -e /tmp/up ]"),
    ),
    "skills": HarborFeature(
        toml=f'[environment]\n{IMAGE}workdir = "/srv"\nskills_dir = "/srv/skills"\n',
        files={"environment/skills/greeting/SKILL.md": "Say good day.\n"},
        test=checked("cmp /srv/skills/greeting/SKILL.md /tmp/learnt"),
        solve="#!/bin/bash\ncp skills/greeting/SKILL.md /tmp/learnt\n",
    ),
    "variables": HarborFeature(
        toml=f'[environment]\n{IMAGE}env = {{A = "1"}}\n'
        '[verifier]\nenv = {WORD = "${NO_SUCH_WORD:-two}"}\n[solution]\nenv = {B = "3"}\n',
        test=checked('[ "$(cat /tmp/said) $WORD" = "1 3 two" ]'),
        solve="#!/bin/bash\necho $A $B >/tmp/said\n",
    ),
    "several rewards": HarborFeature(
        toml=f"[environment]\n{IMAGE}",
        test="#!/bin/bash\n[ -e /tmp/done ]\nreward=$((1 - $?))\n"
        'echo "{\\"reward\\": $reward, \\"style\\": 0.5}" >/logs/verifier/reward.json\n',
    ),
    "a verifier's user": HarborFeature(
        toml=f'[verifier]\nuser = "nobody"\n[environment]\n{IMAGE}',
        test=checked('[ -e /tmp/done ] && [ "$(id -un)" = nobody ] && ! [ -w /etc ]'),
    ),
    "a hook that collects": HarborFeature(
        toml=f"[environment]\n{IMAGE}"
        '[[verifier.collect]]\ncommand = "ls /tmp >/logs/artifacts/listing"\n'
        '[[verifier.collect]]\ncommand = "id -un >/tmp/who"\nuser = "nobody"\n'
        '[[verifier.collect]]\ncommand = "exit 5"\n',
        test=checked("grep -qx done /logs/artifacts/listing && grep -qx nobody /tmp/who"),
    ),
    "a verifier apart": HarborFeature(
        toml='artifacts = ["/srv/out", {source = "/tmp/note", destination = "n"}]\n'
        f'[verifier]\nenvironment_mode = "separate"\nuser = "nobody"\n'
        '[[verifier.collect]]\ncommand = "cp /srv/out/a /logs/artifacts/b"\n'
        f"[environment]\n{IMAGE.partition(chr(10))[2]}",
        files={
            "environment/Dockerfile": f"FROM {BASE}\n"
            "RUN mkdir -m 700 /srv/out && echo 0 >/srv/out/old\n"
        },
        # What the agent removed from a folder is not there again in the copy of the image.
        test=checked(
            "[ \"$(cat /srv/out/a /tmp/note /logs/artifacts/b)\" = $'1\\n2\\n1' ] && "
            "! [ -e /srv/out/old ] && [ -w /srv/out ] && ! [ -e /tmp/other ]"
        ),
        solve="#!/bin/bash\nrm /srv/out/old\necho 1 >/srv/out/a\necho 2 >/tmp/note\n"
        "touch /tmp/other\n",
    ),
    "a verifier's image": HarborFeature(
        toml=f'artifacts = ["/tmp/done"]\n[verifier]\nenvironment_mode = "separate"\n'
        f"[environment]\n{IMAGE}",
        files={
            "tests/Dockerfile": f"FROM {BASE}\nRUN touch /only-here\n"
            "COPY test.sh /tests/test.sh\nRUN chmod 755 /tests/test.sh\n"
        },
        test=checked("[ -e /tmp/done ] && [ -e /only-here ]"),
    ),
    "a server of tools": HarborFeature(
        toml=f'[environment]\n{IMAGE}[[environment.mcp_servers]]\nname = "tools"\n'
        'transport = "streamable-http"\nurl = "http://tools:8000/mcp"\n',
        refused=r"environment.mcp_servers = .* is not supported",
    ),
    "several containers": HarborFeature(
        toml=f"[environment]\n{IMAGE}",
        files={"environment/docker-compose.yaml": "services: {main: {}}\n"},
        refused=r"docker-compose.yaml: tasks of several containers",
    ),
    "several steps": HarborFeature(
        toml=f'[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n[environment]\n{IMAGE}',
        refused=r"steps = \['first', 'second'\] is not supported",
    ),
    "a GPU": HarborFeature(
        toml=f'[environment]\n{IMAGE}gpus = 1\ngpu_types = ["H100"]\n',
        refused=r"environment.gpus = 1 is not supported",
    ),
    "Windows": HarborFeature(
        toml=f'[environment]\n{IMAGE}os = "windows"\n',
        refused=r"environment.os = 'windows' is not supported",
    ),
    "an artefact of another service": HarborFeature(
        toml=f'artifacts = [{{source = "/x", service = "db"}}]\n[environment]\n{IMAGE}',
        refused=r"artifacts\[0\].service = 'db' is not supported",
    ),
    "an allow-list": HarborFeature(
        toml=f'[environment]\n{IMAGE}network_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\n',
        refused=r"the agent's network_mode is 'allowlist'",
        network="task",
    ),
}
PLAYED = sorted(name for name, feature in FEATURES.items() if not feature.refused)
REFUSED = sorted(name for name, feature in FEATURES.items() if feature.refused)
