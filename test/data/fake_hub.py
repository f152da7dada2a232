#!/usr/bin/env python3
"""Runs a command with HF_ENDPOINT at a stand-in for the Hugging Face hub, on a port that is free.

    test/data/fake_hub.py FOLDER [--cut] COMMAND...

FOLDER/OWNER/NAME has the files of a model at one revision, the sha1 of that name. Large files, here *.safetensors and
tokenizer.json, are redirected to another path and have a sha256, as the hub has them; the others have git's checksum.
--cut: the first answer with a large file stops halfway. One line per request goes to FOLDER/log. The exit code is the
command's.
"""

import hashlib
import http.server
import os
import pathlib
import subprocess
import sys
import threading

folder, arguments = pathlib.Path(sys.argv[1]), sys.argv[2:]
cuts = [True] if arguments[0] == "--cut" else []
command = arguments[len(cuts) :]


def is_large(path):
    return path.suffix == ".safetensors" or path.name == "tokenizer.json"


class Hub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        with (folder / "log").open("a") as log:
            log.write(f"{self.command} {self.path} {self.headers.get('Range', '')}\n")
        parts = self.path.split("/")
        stored = self.path.startswith("/stored/")
        name = "/".join(parts[2:4] if stored else parts[1:3])
        revision = hashlib.sha1(name.encode()).hexdigest()
        path = folder / name / parts[-1]
        if not path.is_file() or not stored and (parts[3] != "resolve" or parts[4] not in ("main", revision)):
            return self.answer(404, {"ETag": '"none"'})
        content = path.read_bytes()
        headers = {"X-Repo-Commit": revision}
        if not stored and is_large(path):
            headers.update({"X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Location": f"/stored/{name}/{path.name}"})
            return self.answer(302, headers)
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        headers["ETag"] = '"of the store"' if stored else f'W/"{git}"'
        begin = int(self.headers.get("Range", "bytes=0-")[len("bytes=") :].split("-")[0])
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        sent = content[begin:]
        self.answer(206 if begin else 200, headers, sent, stored and self.command == "GET" and cuts and cuts.pop())

    do_GET = do_HEAD

    def answer(self, status, headers, content=b"", is_cut=False):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if is_cut else content)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
environment["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_address[1]}/"
sys.exit(subprocess.run(command, env=environment).returncode)
