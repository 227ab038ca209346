#!/bin/bash -e
printf '[server]\nhost = 127.0.0.1\nport = 8080\nfolder = /app/public\n' >/app/server.ini
