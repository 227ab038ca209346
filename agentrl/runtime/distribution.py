"""Name and version of the distribution that installs the package `agentrl`.

The distribution `agentrl` of the package index is another project.
"""

__version__ = "0.1.0"

DISTRIBUTION = "agentrl-gym"
