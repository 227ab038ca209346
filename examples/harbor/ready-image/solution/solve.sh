#!/bin/bash -e
grep -ohE '\b[A-Z][a-z]*' letters.txt | wc -l >/srv/count.txt
