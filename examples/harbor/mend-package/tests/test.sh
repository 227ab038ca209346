#!/bin/bash
PYTHONPATH=/app python3 /tests/hidden.py
if [ $? -eq 0 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
