"""Environments of other libraries, played in processes of their own interpreters.

- `agentrl_envs.adapters.gem:GemEnv`: GEM (`gem-llm`);
- `agentrl_envs.adapters.openenv:OpenEnvEnv`: a running OpenEnv server (`openenv-core`);
- `agentrl_envs.adapters.verifiers:VerifiersEnv`: tasksets of verifiers (0.4 and newer).

Their dependencies do not go together with ours, so each lives in a venv of its own, whose `python`
is a setting. See docs/adapters.md.
"""
