# SPDX-License-Identifier: Apache-2.0
"""A server that speaks OpenAI's interface and knows nothing: tests make others of it."""

import http.server
import json
import threading


def said(body):
    """What the fake model answers: the last word of the prompt."""
    if "messages" in body:
        return body["messages"][-1]["content"].split()[-1]
    return body["prompt"].split()[-1]


def echo(text, max_tokens):
    """Log-probabilities of a text by its characters: those of the alphabet's end are rarer."""
    values = [None] + [-0.001 * ord(c) for c in text[1:]]
    best = [None] + [{c: -0.001 * ord(c)} for c in text[1:]]
    more = "!" * max_tokens
    return {"index": 0, "text": text + more, "finish_reason": "length",
            "logprobs": {"tokens": list(text + more), "token_logprobs": values + [-1.0] * max_tokens,
                         "top_logprobs": best + [{"!": -1.0}] * max_tokens,
                         "text_offset": list(range(len(text + more)))}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json", headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, data):
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def do_GET(self):
        if self.path == "/v1/models":
            return self.server.fake.models(self)
        return self.send(404, {"error": {"message": "no such route"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake = self.server.fake
        try:
            if self.path == "/v1/chat/completions":
                with fake.lock:
                    fake.asked.append(body)
                return fake.chat(self, body)
            if self.path == "/v1/completions":
                return fake.complete(self, body)
            return self.send(404, {"error": {"message": "no such route"}})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client went
            return None


class Fake:
    """A server that behaves; tests make others of it."""

    def __init__(self, port=0):
        self.asked, self.lock = [], threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.fake = self
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def prompts(self):
        return [said(body) for body in self.asked if body["max_tokens"] > 1]

    def models(self, to):
        to.send(200, {"object": "list", "data": [{"id": "fake", "owned_by": "nobody"}]})

    def chat(self, to, body):
        to.begin_stream()
        word = said(body)
        to.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for piece in (word[:2], word[2:]):
            to.event({"choices": [{"index": 0, "delta": {"content": piece}, "logprobs": {
                "content": [{"token": piece, "logprob": -0.5, "bytes": None}]}}]})
        to.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        to.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
        to.event("[DONE]")

    def complete(self, to, body):
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices = [{**echo(text, body["max_tokens"]), "index": i} for i, text in enumerate(prompts)]
        to.send(200, {"choices": choices[::-1]})
