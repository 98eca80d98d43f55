"""``event_display.py PORT``: receive CloudEvents with the CloudEvents SDK, as Knative's
event_display (KServe's message dumper) does: an event that the SDK rejects gets status 400.

``GET /events`` returns the attributes and the data of all events as JSON."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudevents.exceptions import GenericException
from cloudevents.http import from_dict, from_http

EVENTS = []


def read(headers, body):
    if headers["content-type"] == "application/cloudevents-batch+json":
        return [from_dict(item) for item in json.loads(body)]
    return [from_http(headers, body)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.respond(200, json.dumps(EVENTS).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            events = read(headers, body)
        except GenericException as error:
            self.respond(400, str(error).encode())
            return
        EVENTS.extend([event.get_attributes() | {"data": event.get_data()} for event in events])
        self.respond(202, b"")

    def respond(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
