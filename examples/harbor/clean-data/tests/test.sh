#!/bin/bash
if cmp -s /tests/expected.csv /app/clean.csv; then reward=1; else reward=0; fi
echo "$reward" >/logs/verifier/reward.txt
