"""A process in place of a node: says that it is ready, answers as admin, ends when asked.

    python stand_in.py NAME ADDRESSES [WHIM]

It tells the processes and counters that a node would, none of the rest; a whim makes it misbehave.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def main(name: str, addresses: str, whim: str = "") -> None:
    if whim == "fails":
        print("the model is not there", file=sys.stderr)
        sys.exit(3)
    own = json.loads(Path(addresses).read_text())[name]
    host, _, port = own["admin"].rpartition(":")
    start_s = time.monotonic()

    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if whim == "garbles":
                body = b"what?"
            else:
                count = int(100 * (time.monotonic() - start_s))
                told = {
                    "schema": 1,
                    "node": name,
                    "pid": os.getpid(),
                    "slot": 7,
                    "alive": ["cloud"],
                    "running": {"digits/tiny": 2, "other/tiny": 1},
                    "budget_bytes": 4 << 20,
                    "used_bytes": 3 << 20,
                    "degraded": "the cloud is away" if name == "edge" else "",
                    "arrived": count,
                    "forwarded": 0,
                    "served": count,
                    "cpu_s": time.process_time(),
                }
                body = json.dumps(told).encode()
            found = self.path == "/v2/node"
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, form: str, *words: object) -> None:
            print(form % words, file=sys.stderr)

    class Clients(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/v2/models/digits/ready" and whim != "unready"
            self.send_response(200 if known else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

    if whim == "ends":
        print(f"ready {name}", flush=True)
        print("out of memory", file=sys.stderr)
        sys.exit(9)
    server = HTTPServer((host, int(port)), Admin)
    front = HTTPServer((host, int(own["http"].rpartition(":")[2])), Clients)
    threading.Thread(target=front.serve_forever, daemon=True).start()
    if whim == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"starting {name}", flush=True)
    if whim != "slow":
        print(f"ready {name} http= admin={host}:{port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
