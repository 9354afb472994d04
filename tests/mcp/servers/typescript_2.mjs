// A server of the TypeScript SDK 2.x.
import { McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { register } from "./tools.mjs";

serveStdio(() => {
  const server = new McpServer({ name: "typescript-2", version: "1" });
  register(server);
  return server;
});
