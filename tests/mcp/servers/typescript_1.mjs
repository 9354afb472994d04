// A server of the TypeScript SDK 1.x.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { register } from "./tools.mjs";

const server = new McpServer({ name: "typescript-1", version: "1" });
register(server);
await server.connect(new StdioServerTransport());
