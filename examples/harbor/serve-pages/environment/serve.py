"""Serves a folder as /app/server.ini says."""

import configparser
import functools
import http.server

config = configparser.ConfigParser()
config.read("/app/server.ini")
section = config["server"]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=section["folder"])
address = (section["host"], section.getint("port"))
http.server.ThreadingHTTPServer(address, handler).serve_forever()
