#!/bin/bash
# The program is somebody else's: it runs as nobody, who can neither read what is expected nor write
# the reward, on a copy, without the variables of this shell.
chmod 700 /tests /logs/verifier
echo 0 >/logs/verifier/reward.txt
work=$(mktemp -d)
cp /app/roman.py "$work/roman.py" && chmod 755 "$work" && chmod 644 "$work/roman.py" || exit 0
cd "$work" || exit 0
env -i PATH=/usr/bin:/bin timeout -s KILL 10 setpriv --reuid=65534 --regid=65534 --clear-groups \
    /usr/bin/python3 -I roman.py <<<$'1994\n4\n3999\n48\n2024\n900' >/tests/actual 2>/dev/null
cmp -s /tests/actual /tests/expected && echo 1 >/logs/verifier/reward.txt
exit 0
