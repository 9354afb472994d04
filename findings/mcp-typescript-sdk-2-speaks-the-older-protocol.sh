#!/usr/bin/env bash
# A server of the TypeScript SDK 2.x for the Model Context Protocol that is started as the 1.x documentation shows,
# `server.connect(new StdioServerTransport())`, does not know the protocol of 2026-07-28: it answers `server/discover` with
# "Method not found". Only `serveStdio` of the same package answers it. So the version of a server's SDK does not tell which
# protocol it speaks, and a client must be ready for both. Seen with servers that are published with 2.x (server-pdf).
source "$(dirname "$0")/common.sh"
expected="connect: initialize 2025-11-25, server/discover -32601
serveStdio: initialize 2025-11-25, server/discover 2026-07-28"
version=2.4.0
command -v node >/dev/null && timeout 300 npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" \
  "@modelcontextprotocol/server@$version" >/dev/null || { echo "not tried: the package could not be installed"; exit 2; }
cat > "$folder/connect.mjs" <<'JAVASCRIPT'
import { McpServer } from "@modelcontextprotocol/server";
import { StdioServerTransport } from "@modelcontextprotocol/server/stdio";
const server = new McpServer({ name: "connect", version: "1" });
server.registerTool("t", {}, async () => ({ content: [] }));
await server.connect(new StdioServerTransport());
JAVASCRIPT
cat > "$folder/serveStdio.mjs" <<'JAVASCRIPT'
import { McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
serveStdio(() => {
  const server = new McpServer({ name: "serveStdio", version: "1" });
  server.registerTool("t", {}, async () => ({ content: [] }));
  return server;
});
JAVASCRIPT
initialize='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
meta='"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}'
discover='{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{'"$meta"'}}'
# Prints what the server answers to its first message: the version, or the code of the error.
first_answer() {
  printf '%s\n' "$2" | timeout 60 node "$folder/$1.mjs" 2>/dev/null | node -e '
    const answer = JSON.parse(require("fs").readFileSync(0, "utf8").split("\n")[0]);
    console.log(answer.error?.code ?? answer.result.protocolVersion ?? answer.result.supportedVersions.join(" "))'
}
saw="$(for way in connect serveStdio; do
  echo "$way: initialize $(first_answer "$way" "$initialize"), server/discover $(first_answer "$way" "$discover")"
done)" || true
compare "@modelcontextprotocol/server@$version"
