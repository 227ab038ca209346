"""Agent programs as they are, as environments: what they ask a model is what the policy answers.

`BlackBoxEnv` runs a program for every episode and gives it the address of a gateway
(`agentrl.gateway`) in the place of OpenAI's or Anthropic's. The program's requests are the
observations, and what the policy says is what the program is answered. See docs/blackbox.md.
"""

from agentrl_envs.blackbox.env import BlackBoxEnv
from agentrl_envs.blackbox.program import ProgramEndpoint

__all__ = ["BlackBoxEnv", "ProgramEndpoint"]
