"""Environments of other libraries, played in processes of their own interpreters.

- `agentrl_envs.adapters.gem:GemEnv`: GEM (`gem-llm`);
- `agentrl_envs.adapters.gymnasium:open_gymnasium`: Gymnasium's, and packages that register there;
- `agentrl_envs.adapters.inspect_tasks:InspectEnv`: tasks of Inspect (`inspect-ai`);
- `agentrl_envs.adapters.openenv:OpenEnvEnv`: a running OpenEnv server (`openenv-core`);
- `agentrl_envs.adapters.verifiers:VerifiersEnv`: environments of verifiers (0.4 and newer).

Their dependencies do not go together with ours, so each lives in a venv of its own, whose `python`
is a setting. See docs/adapters.md.
"""
