# Sourced by the findings: a temporary folder, a Python environment with pinned packages, a bounded run, a comparison.
# try PACKAGE.. < program; the expected output is in $expected. Exit 0: as described; 1: it changed; 2: it could not be tried.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

try() {
  python3 -m venv "$folder/env" && timeout 900 "$folder/env/bin/pip" install --quiet --disable-pip-version-check "$@" \
    || { echo "not tried: the packages could not be installed: $*"; exit 2; }
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
  echo "versions: $*"
  echo "$saw"
  [ "$saw" = "$expected" ] || { printf 'changed; until now it was:\n%s\n' "$expected"; exit 1; }
  echo "as described"
}
