"""A server of the Python SDK 1.x: over HTTP, if its argument is a port."""

import sys

from mcp.server.fastmcp import FastMCP

from tools import register

port = int(sys.argv[1]) if sys.argv[1:] else 0
server = FastMCP("python-1", port=port)
register(server.tool)
server.run("streamable-http" if port else "stdio")
