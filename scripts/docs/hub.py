"""A Hugging Face hub on loopback that serves folders as models."""

import functools
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse

COMMIT = "c" * 40
# Files above this size are sparse files of tests, and identified by their names.
SPARSE = 1 << 30
# Bytes of each body that was sent.
sent: list[int] = []


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers the listing of a model and its files, whole or in ranges."""

    protocol_version = "HTTP/1.1"

    def __init__(self, models, *arguments):
        self.models = models
        super().__init__(*arguments)

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = urllib.parse.unquote(self.path.split("?")[0])
        listing = re.fullmatch(r"/api/models/(.+)/revision/[^/]+", path)
        file = re.fullmatch(r"/(.+)/resolve/[^/]+/(.+)", path)
        if listing and listing[1] in self.models:
            folder = self.models[listing[1]]
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            siblings = [sibling(folder, path) for path in files]
            body = json.dumps({"id": listing[1], "sha": COMMIT, "private": False, "siblings": siblings}).encode()
            self.answer(200, {"content-type": "application/json"}, body)
        elif file and file[1] in self.models and (self.models[file[1]] / file[2]).is_file():
            self.file(self.models[file[1]] / file[2])
        else:
            self.answer(404, {}, b"")

    def file(self, path: pathlib.Path):
        size, etag = path.stat().st_size, digest(path)
        headers = {"x-repo-commit": COMMIT, "etag": f'"{etag}"', "accept-ranges": "bytes"}
        if is_large(path):
            headers |= {"x-linked-etag": f'"{etag}"', "x-linked-size": str(size)}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if not asked:
            return self.answer(200, headers, path.read_bytes())
        start, end = int(asked[1]), min(int(asked[2] or size), size - 1)
        headers["content-range"] = f"bytes {start}-{end}/{size}"
        with path.open("rb") as content:
            content.seek(start)
            self.answer(206, headers, content.read(end + 1 - start))

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            sent.append(len(body))


def is_large(path):
    return path.suffix in {".safetensors", ".onnx", ".gguf"}


@functools.cache
def digest(path):
    """The SHA-256 of a large file, or a git hash."""
    if path.stat().st_size > SPARSE:
        return hashlib.sha256(path.name.encode()).hexdigest()
    content = path.read_bytes()
    if is_large(path):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sibling(folder, path):
    size = path.stat().st_size
    value = {"rfilename": str(path.relative_to(folder)), "size": size, "blobId": digest(path)[:40]}
    if is_large(path):
        value["lfs"] = {"sha256": digest(path), "size": size, "pointerSize": 134}
    return value


def start(models: dict[str, pathlib.Path]) -> str:
    """Serves models by id until the process ends; the address for `HF_ENDPOINT`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, models))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"
