"""llama.cpp's server, as the wheel xllamacpp has it, in this process."""

import os
import sys

import xllamacpp

servers = []


def serve(model):
    """A server of a GGUF file, at a free port. It stays: its destructor waits for a thread, once in a while forever."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.port, params.warmup = str(model), 64, 0, False
    servers.append(xllamacpp.Server(params))
    return servers[-1]


def end(status):
    """Ends this process without destructors."""
    sys.stdout.flush()
    os._exit(status)
