"""Sandbox providers: containers of anybody's images, beside the pools of `agentrl_sandbox`."""

from agentrl_sandbox.provider.docker import DockerProvider

__all__ = ["DockerProvider"]
