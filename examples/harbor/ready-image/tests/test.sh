#!/bin/bash
[ "$(tr -d '[:space:]' <count.txt)" = 6 ]
echo $((1 - $?)) >/logs/verifier/reward.txt
