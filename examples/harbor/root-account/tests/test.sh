#!/bin/bash
right() {
    [ "$(getent passwd courier | cut -d: -f3,6)" = "4200:/srv/courier" ] &&
        [ "$(stat -c '%u %a' /srv/courier/inbox)" = "4200 700" ] &&
        grep -qE '^10\.0\.0\.7[[:space:]]+depot$' /etc/hosts
}
if right; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
