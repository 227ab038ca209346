"""Containers without an engine, made of the kernel's namespaces and layers of files.

dockerfile, dockerfile_words   instructions and words of a Dockerfile
image_plan                     what they do, decided before anything runs
image_build                    the steps of a plan, done in a container
layer_cache, root_files        images and root file systems on disk, bounded
container, command_output      a container and its commands; `agentrl_sandbox.contain` is inside
layer_changes                  what a container changed
machine                        whether containers can be made here
provider                       `NamespaceProvider`
"""

from agentrl_sandbox.provider.namespaces.provider import BUILD_NETWORKS, NamespaceProvider

__all__ = ["BUILD_NETWORKS", "NamespaceProvider"]
