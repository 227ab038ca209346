"""An MCP server of an older time, without the SDK: line by line, and wrong where it is told to be.

`tiny_mcp_server.py MODE LOG`; MODE is `good`, `endless` (its list of tools has no end) or `deaf`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

mode, log = sys.argv[1], Path(sys.argv[2])
total = 0
TOOLS: list[list[dict[str, Any]]] = [
    [
        {
            "name": "add",
            "description": "Add to the total and say it.",
            "inputSchema": {
                "type": "object",
                "properties": {"amount": {"type": "integer"}},
                "required": ["amount"],
            },
        },
        {"name": "process", "inputSchema": {"type": "object"}},
    ],
    [
        {"name": "broken", "description": "Fail.", "inputSchema": {"type": "object"}},
        {"name": "long", "description": "x" * 5000, "inputSchema": {"type": "object"}},
        {"name": "absurd", "inputSchema": {"type": "object"}},
    ],
]


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a result, or raise `LookupError` with the code and words of a protocol error."""
    global total
    if name == "broken":
        raise LookupError(-32603, "it is broken" + "!" * 10_000)
    if name == "process":
        return {"content": [{"type": "text", "text": str(os.getpid())}]}
    if name == "absurd":
        nested: Any = float("nan") if arguments["kind"] == "nan" else 10**400
        for _ in range(150 if arguments["kind"] == "depth" else 0):
            nested = [nested]
        return {"content": [], "structuredContent": {"a": nested}}
    if set(arguments) != {"amount"} or type(arguments["amount"]) is not int:
        raise LookupError(-32602, "amount must be an integer, and nothing else may be there")
    total += arguments["amount"]
    return {"content": [{"type": "text", "text": f"the total is {total}"}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            version = params["protocolVersion"]
            info = {"name": "tiny", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            page = int(params.get("cursor", 0))
            if mode == "endless":
                return {"tools": [], "nextCursor": str(page + 1)}
            return {"tools": TOOLS[page], **({"nextCursor": "1"} if page == 0 else {})}
        case "tools/call":
            return called(params["name"], params.get("arguments", {}))
        case _:
            raise LookupError(-32601, f"there is no method {method}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")
    say("Welcome to the tiny server!")
    while mode == "deaf":
        time.sleep(1)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(message["method"], message.get("params", {}))
        except LookupError as error:
            reply["error"] = {"code": error.args[0], "message": error.args[1]}
        say(json.dumps(reply))


main()
