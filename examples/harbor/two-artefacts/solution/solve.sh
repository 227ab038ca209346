#!/bin/bash -e
cd /app
python3 - <<'PYTHON'
import csv, json
from collections import Counter

revenue, units = Counter(), 0
for row in csv.DictReader(open("sales.csv")):
    revenue[row["region"]] += int(row["units"]) * int(row["price"])
    units += int(row["units"])
with open("totals.csv", "w") as file:
    file.write("region,revenue\n")
    for region in sorted(revenue):
        file.write(f"{region},{revenue[region]}\n")
with open("summary.json", "w") as file:
    json.dump({"regions": len(revenue), "units": units}, file)
PYTHON
