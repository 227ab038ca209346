"""`task.toml` of a Harbor task, schema 1.x: every key that decides how a task is played.

Unknown keys change nothing, as in Harbor, and `list_unread_keys` names them; types and defaults are
Harbor's (harbor 0.25). A time or a size that cannot be kept is refused, where Harbor takes any
number.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl.errors import ConfigError

NetworkMode = Literal["no-network", "public", "allowlist"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Harbor takes any number; an endless, negative or absent time is no deadline."""
Pause = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*([GMK])")
_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class HarborSection(BaseModel):
    """A table of `task.toml`."""

    model_config = ConfigDict(frozen=True, extra="allow")


class NetworkSection(HarborSection):
    """A table with a network policy of its own, or none."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check_hosts(self) -> "NetworkSection":
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts is only valid with network_mode = 'allowlist'")
        return self


class HealthcheckSection(HarborSection):
    """A command that must succeed before the agent begins; as Docker's HEALTHCHECK."""

    command: str
    interval_sec: Pause = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Pause = 0.0
    start_interval_sec: Pause = 5.0
    retries: int = Field(default=3, ge=1)


class EnvironmentSection(NetworkSection):
    """The container: how it is made, and its limits."""

    network_mode: NetworkMode = "public"  # pyright: ignore[reportIncompatibleVariableOverride]
    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: tuple[dict[str, Any], ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: HealthcheckSection | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_old_keys(cls, table: Any) -> Any:
        """Give `memory`, `storage` and `allow_internet` their names of today."""
        if not isinstance(table, Mapping):
            return table
        values = dict(cast("Mapping[str, Any]", table))
        if isinstance(os := values.get("os"), str):
            values["os"] = os.lower()
        for old in ("memory", "storage"):
            size = values.pop(old, None)
            if isinstance(size, str):
                parsed_mb = parse_size_mb(size)
                if values.setdefault(f"{old}_mb", parsed_mb) != parsed_mb:
                    raise ValueError(
                        f"{old} = {size!r} is {parsed_mb} MB, but {old}_mb is {values[f'{old}_mb']}"
                    )
        internet = values.pop("allow_internet", None)
        if internet is not None and not {"network_mode", "allowed_hosts"} & values.keys():
            values["network_mode"] = "public" if internet else "no-network"
        return values


class AgentSection(NetworkSection):
    """The agent's time and user."""

    timeout_sec: Seconds | None = None
    user: str | int | None = None


class CollectSection(HarborSection):
    """A command that writes artefacts after the agent's end."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: str | int | None = None


class VerifierSection(NetworkSection):
    """The verifier's time, user, variables and container."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentSection | None = None
    collect: tuple[CollectSection, ...] = ()

    @model_validator(mode="after")
    def _check_mode(self) -> "VerifierSection":
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' does not go with [verifier.environment]")
        return self

    @property
    def separate(self) -> bool:
        """Whether it runs in a container of its own."""
        return (self.environment_mode or ("separate" if self.environment else "shared")) == (
            "separate"
        )


class ArtifactSection(HarborSection):
    """A file or directory that a verifier of its own container is given."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_source(self) -> "ArtifactSection":
        if ".." in self.source.split("/"):
            raise ValueError(f"source {self.source!r} must not contain '..'")
        return self


class PackageSection(HarborSection):
    """The task's name in a registry."""

    name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*$")
    description: str = ""
    keywords: tuple[str, ...] = ()


class SolutionSection(HarborSection):
    """Variables of the solution."""

    env: dict[str, str] = Field(default_factory=dict)


class TaskConfig(HarborSection):
    """The whole file."""

    schema_version: str = "1.4"
    task: PackageSection | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: VerifierSection = Field(default_factory=VerifierSection)
    agent: AgentSection = Field(default_factory=AgentSection)
    environment: EnvironmentSection = Field(default_factory=EnvironmentSection)
    solution: SolutionSection = Field(default_factory=SolutionSection)
    artifacts: tuple[ArtifactSection, ...] = ()
    steps: tuple[dict[str, Any], ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_version(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and "version" in table:
            values = dict(cast("Mapping[str, Any]", table))
            values.setdefault("schema_version", values.pop("version"))
            return values
        return table


def parse_task_config(text: str, file: str) -> TaskConfig:
    """Read the text of a `task.toml`; `ConfigError` names the file and the key."""
    try:
        return TaskConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except ValidationError as error:
        faults = [f"{_name_key(fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        raise ConfigError(f"{file}: {'; '.join(faults)}") from error


def list_unread_keys(section: HarborSection, within: str = "") -> Iterator[str]:
    """Yield the keys that change nothing, such as `verifier.timeout_seconds`."""
    for name in section.model_extra or {}:
        yield f"{within}{name}"
    for name in type(section).model_fields:
        if isinstance(value := getattr(section, name), HarborSection):
            yield from list_unread_keys(value, f"{within}{name}.")


def parse_size_mb(size: str) -> int:
    """Return a size such as `2G`, `512M` or `1024K` in MB."""
    if (matched := _SIZE.fullmatch(size.strip().upper())) is None:
        raise ValueError(f"size {size!r} has no unit; write 2G, 512M or 1024K")
    return int(float(matched[1]) * _MB[matched[2]])


def _name_key(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "the file"
