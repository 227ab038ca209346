#!/bin/bash
cd /app && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app python3 -m unittest discover -s /tests
if [ $? -eq 0 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
