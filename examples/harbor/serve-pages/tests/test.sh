#!/bin/bash
# The server's own program is not the agent's to change: the one beside this file is started.
echo 0 >/logs/verifier/reward.txt
python3 /tests/serve.py &
server=$!
python3 /tests/ask.py && echo 1 >/logs/verifier/reward.txt
kill "$server"
