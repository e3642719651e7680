"""A proxy before a prefill and a decode server: the client asks it as it would ask one server.

    python proxy.py --port 8000 --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200

It knows nothing of Transload: ``kv_transfer_params`` of the prefill server's answer go to the decode server as they are.
"""

import argparse
import http.client
import json
import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from servers import post


def prefill(url: str, path: str, body: dict) -> dict:
    """Has the prompt prefilled, and gives what the decode server needs to know."""
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    body = body | {"max_tokens": 1, "n": 1, "stream": False, "kv_transfer_params": asked}
    for option in ("stream_options", "min_tokens"):
        body.pop(option, None)
    if "max_completion_tokens" in body:
        body["max_completion_tokens"] = 1
    with post(f"{url}{path}", body) as answer:
        return json.load(answer).get("kv_transfer_params") or {}


class Handler(BaseHTTPRequestHandler):
    prefill_url = decode_url = ""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            params = prefill(self.prefill_url, self.path, body)
            with post(f"{self.decode_url}{self.path}", body | {"kv_transfer_params": params}) as answer:
                self.pass_on(answer)
        except urllib.error.HTTPError as error:
            self.answer(error.code, error.msg)
        except (OSError, http.client.HTTPException) as error:
            self.answer(502, str(error))

    def pass_on(self, answer):
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.end_headers()
        while part := answer.read1():
            self.wfile.write(part)

    def answer(self, code, why):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": why, "code": code}}).encode())

    def log_message(self, *_):
        pass


def serve(prefill_url: str, decode_url: str, port: int = 0) -> ThreadingHTTPServer:
    """A proxy on `port` (0: a free one) that runs until its `shutdown`."""
    handler = type("Handler", (Handler,), {"prefill_url": prefill_url, "decode_url": decode_url})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--port", type=int, default=8000)
    arguments.add_argument("--prefill", required=True, metavar="URL")
    arguments.add_argument("--decode", required=True, metavar="URL")
    given = arguments.parse_args()
    handler = type("Handler", (Handler,), {"prefill_url": given.prefill, "decode_url": given.decode})
    ThreadingHTTPServer(("127.0.0.1", given.port), handler).serve_forever()
