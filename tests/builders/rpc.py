"""A second process as a device: llama.cpp's own RPC server on this machine's processor."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

SERVE = """
import ctypes, sys
from llama_cpp import llama_cpp as api
library = api._lib
library.ggml_backend_dev_get.restype = ctypes.c_void_p
devices = (ctypes.c_void_p * 1)(library.ggml_backend_dev_get(ctypes.c_size_t(0)))
serve = library.ggml_backend_rpc_start_server
serve.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
serve(sys.argv[1].encode(), None, 1, 1, devices)
"""


@contextmanager
def serve_rpc() -> Generator[str]:
    """One thread of this machine behind a port of its own; the endpoint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"127.0.0.1:{port}"
    command = [sys.executable, "-c", SERVE, endpoint]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(port)
            yield endpoint
        finally:
            server.kill()


def wait_for(port: int) -> None:
    """Until somebody listens there."""
    for _ in range(300):
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the RPC server did not start")
