#!/bin/bash -e
export PATH=$PATH:/usr/sbin
useradd --uid 4200 --home-dir /srv/courier --create-home courier
install -d -o courier -m 700 /srv/courier/inbox
echo '10.0.0.7 depot' >>/etc/hosts
