#!/bin/bash -e
cd /app
head -n 1 measurements.csv >clean.csv
tail -n +2 measurements.csv | grep -E ',-?[0-9]+(\.[0-9]+)?$' | tac | sort -t, -k1,1 -k2,2 -u -s >>clean.csv
