"""Ends well when the page is served, within ten seconds."""

import sys
import time
import urllib.request

for _ in range(50):
    try:
        with urllib.request.urlopen("http://127.0.0.1:8080/index.html", timeout=5) as answer:
            sys.exit(answer.read() != b"It works.\n")
    except OSError:
        time.sleep(0.2)
sys.exit(1)
