#!/bin/bash -e
cat >/app/roman.py <<'PYTHON'
import sys

VALUES = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
SIGNS = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")
for line in sys.stdin:
    number, numeral = int(line), ""
    for value, sign in zip(VALUES, SIGNS):
        numeral += sign * (number // value)
        number %= value
    print(numeral)
PYTHON
echo 14 | python3 /app/roman.py
