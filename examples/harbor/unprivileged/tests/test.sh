#!/bin/bash
if [ "$(cat /home/clerk/report.txt)" = $'april.txt 7\nmay.txt 9\nsecret.txt unreadable' ]; then
    echo 1
else
    echo 0
fi >/logs/verifier/reward.txt
