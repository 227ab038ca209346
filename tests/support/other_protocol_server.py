"""A server that speaks no protocol of OpenEnv's, for OpenEnv's interpreter.

`other_protocol_server.py` writes its port; the first part of a path decides what it answers.
"""

# pyright: basic, reportMissingImports=false
import sys

from websockets.sync.server import serve

ANSWERS = {
    "word": '{"type": "turn", "data": {}}',
    "endless": '{"type": "observation", "data": {"observation": {}}}',
    "list": '["observation"]',
    "twice": '{"type": "observation", "data": {"observation": {}, "reward": 1, "done": false}}',
}


def speak(connection):
    name = connection.request.path.split("/")[1]
    for _ in connection:
        for _ in range(2 if name == "twice" else 1):
            connection.send(ANSWERS[name])


def refuse(connection, request):
    known = request.path.split("/")[1] in ANSWERS
    return None if known else connection.respond(404, "nothing here")


with serve(speak, "127.0.0.1", 0, process_request=refuse) as server:
    print(server.socket.getsockname()[1], flush=True)  # noqa: T201
    sys.stdout.close()
    server.serve_forever()
