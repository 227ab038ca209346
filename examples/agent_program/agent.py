"""An agent of the OpenAI Agents SDK that answers one question, and knows nothing of agentrl.

`pip install openai-agents`; then `python agent.py QUESTION` asks the model that OPENAI_BASE_URL,
OPENAI_API_KEY and AGENTRL_MODEL name, and writes its answer.
"""

# pyright: basic, reportMissingImports=false
import os
import sys

import agents
import openai


@agents.function_tool
def add(a: int, b: int) -> int:
    """Return a plus b."""
    return a + b


@agents.function_tool
def multiply(a: int, b: int) -> int:
    """Return a times b."""
    return a * b


def main() -> None:
    """Answer the question of the command line."""
    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel(os.environ["AGENTRL_MODEL"], openai.AsyncOpenAI())
    agent = agents.Agent("calculator", model=model, tools=[add, multiply])
    print(agents.Runner.run_sync(agent, sys.argv[1]).final_output)


if __name__ == "__main__":
    main()
