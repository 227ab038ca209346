#!/bin/bash -e
cd /data/photos
for file in IMG_????-??-??_*.jpg; do
    rest=${file#IMG_}
    date=${rest%%_*}
    number=${rest#*_}
    target=/data/sorted/${date:0:4}/${date:5:2}
    mkdir -p "$target"
    mv "$file" "$target/${date:8:2}-$number"
done
