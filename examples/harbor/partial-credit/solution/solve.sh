#!/bin/bash -e
cd /app
requests=$(wc -l <access.log)
errors=$(awk '$4 >= 500' access.log | wc -l)
busiest=$(cut -d' ' -f1 access.log | sort | uniq -c | sort -rn | awk 'NR == 1 {print $2}')
printf '{"requests": %d, "errors": %d, "busiest": "%s"}\n' "$requests" "$errors" "$busiest" >answers.json
