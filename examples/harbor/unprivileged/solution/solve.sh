#!/bin/bash -e
cd /srv/ledgers
for file in *.txt; do
    if [ -r "$file" ]; then
        echo "$file $(paste -sd+ "$file" | sed 's/+-/-/g' | { read -r sum; echo $((sum)); })"
    else
        echo "$file unreadable"
    fi
done >/home/clerk/report.txt
