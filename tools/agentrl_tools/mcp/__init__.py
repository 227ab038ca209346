"""The tools of any MCP server, for a `ToolEnv`: over stdio or streamable HTTP.

    agentrl.register_tool_env("my/Files-v0", tools=[mcp_tools(command=["my-server"])], ...)

See docs/mcp.md. Needs the extra `mcp`; importing this package does not import it.
"""

from agentrl_tools.mcp.source import McpTools, mcp_tools

__all__ = ["McpTools", "mcp_tools"]
