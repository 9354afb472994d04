"""A server of the Python SDK 2.x: over HTTP, if its argument is a port."""

import sys

from mcp.server import MCPServer

from tools import register

server = MCPServer("python-2")
register(server.tool)
if sys.argv[1:]:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
