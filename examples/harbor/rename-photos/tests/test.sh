#!/bin/bash
listed=$(cd /data && find photos sorted -type f -exec sh -c 'echo "$1 $(cat "$1")"' sh {} ';' | sort)
if [ "$listed" = "$(cat /tests/expected)" ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
