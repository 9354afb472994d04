"""A server of FastMCP 4: over HTTP, if its argument is a port."""

import sys

from fastmcp import FastMCP

from tools import register

server = FastMCP("fastmcp-4")
register(server.tool)
if sys.argv[1:]:
    server.run("http", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(show_banner=False)
