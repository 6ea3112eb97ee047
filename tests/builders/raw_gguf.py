"""GGUF headers byte by byte, independent of any library, so that each byte can be made wrong on purpose."""

from __future__ import annotations

import struct
from collections.abc import Callable

U32, STRING, ARRAY = 4, 8, 9
F32 = 0


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, value: int | str) -> bytes:
    if isinstance(value, int):
        return text(key) + struct.pack("<II", U32, value)
    return text(key) + struct.pack("<I", STRING) + text(value)


def tensor(name: str, shape: tuple[int, ...], *, kind: int = F32, offset: int = 0, n_dims: int | None = None) -> bytes:
    dims = struct.pack("<I", len(shape) if n_dims is None else n_dims) + b"".join(struct.pack("<Q", d) for d in shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


PAIRS = (
    pair("general.architecture", "llama"),
    pair("general.alignment", 32),
    pair("llama.block_count", 1),
    pair("llama.embedding_length", 32),
    pair("llama.attention.head_count", 2),
    pair("llama.context_length", 256),
)
TENSORS = (tensor("token_embd.weight", (32, 8)), tensor("blk.0.attn_q.weight", (32, 32), offset=1024))
DATA = bytes(1024 + 4096)


def header(
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    pairs: tuple[bytes, ...] = PAIRS,
    tensors: tuple[bytes, ...] = TENSORS,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    data: bytes = DATA,
) -> bytes:
    """A small whole file; each argument can be made wrong."""
    counts = struct.pack(
        "<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs
    )
    body = magic + counts + b"".join(pairs) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + data


def typed(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def hostile_files() -> dict[str, bytes]:
    """Name → bytes of a file that must be refused: made by mutation of a good one."""
    good = header()
    with_pair: Callable[[bytes], bytes] = lambda extra: header(pairs=(*PAIRS, extra))  # noqa: E731
    with_tensor: Callable[[bytes], bytes] = lambda extra: header(tensors=(*TENSORS, extra))  # noqa: E731
    end = len(good)
    files = {f"cut at byte {cut}": good[:cut] for cut in (0, 1, 3, 4, 7, 8, 15, 16, 23, 24, 31, 40, 63, 90, 130, 200, 260, 300)}
    files |= {f"cut {short} bytes short": good[: end - short] for short in (1, 32, 4096, 5000)}
    files |= {
        "wrong magic": header(magic=b"GGML"),
        "magic backwards": header(magic=b"FUGG"),
        "a zip file": b"PK\x03\x04" + good,
        "text": b"this is not a model\n" * 100,
        "zeros": bytes(4096),
        "version 0": header(version=0),
        "version 1": header(version=1),
        "version 99": header(version=99),
        "version of a big-endian file": header(version=0x03000000),
        "2^40 pairs": header(n_pairs=2**40),
        "2^63 pairs": header(n_pairs=2**63),
        "2^40 tensors": header(n_tensors=2**40),
        "2^63 tensors": header(n_tensors=2**63),
        "one pair too many": header(n_pairs=len(PAIRS) + 1, tensors=()),
        "key of 2^60 bytes": header(pairs=(struct.pack("<Q", 2**60) + b"x", *PAIRS)),
        "key of 2^63 bytes": header(pairs=(struct.pack("<Q", 2**63) + b"x", *PAIRS)),
        "string of 2^60 bytes": with_pair(typed("general.name", STRING, struct.pack("<Q", 2**60))),
        "string of 2^64-1 bytes": with_pair(typed("general.name", STRING, struct.pack("<Q", 2**64 - 1))),
        "unknown value type": with_pair(typed("general.name", 77, bytes(8))),
        "array of 2^61 numbers": with_pair(typed("x.array", ARRAY, struct.pack("<IQ", U32, 2**61))),
        "array of 2^61 strings": with_pair(typed("x.array", ARRAY, struct.pack("<IQ", STRING, 2**61))),
        "array of unknown type": with_pair(typed("x.array", ARRAY, struct.pack("<IQ", 99, 3) + bytes(12))),
        "string array with a huge string": with_pair(
            typed("x.array", ARRAY, struct.pack("<IQ", STRING, 2) + struct.pack("<Q", 2**50))
        ),
        "nested arrays without end": with_pair(typed("x.array", ARRAY, struct.pack("<IQ", ARRAY, 1) * 3000)),
        "alignment 0": header(pairs=(PAIRS[0], pair("general.alignment", 0), *PAIRS[2:])),
        "alignment 3": header(pairs=(PAIRS[0], pair("general.alignment", 3), *PAIRS[2:])),
        "alignment 2^31": header(pairs=(PAIRS[0], pair("general.alignment", 2**31), *PAIRS[2:])),
        "alignment as text": header(pairs=(PAIRS[0], pair("general.alignment", "32"), *PAIRS[2:])),
        "no architecture": header(pairs=PAIRS[1:]),
        "architecture as a number": header(pairs=(pair("general.architecture", 7), *PAIRS[1:])),
        "a projector": header(pairs=(pair("general.architecture", "clip"), *PAIRS[1:])),
        "an adapter": with_pair(pair("general.type", "adapter")),
        "an importance matrix": with_pair(pair("general.type", "imatrix")),
        "9 dimensions": with_tensor(tensor("x", (2, 2), n_dims=9)),
        "2^31 dimensions": with_tensor(tensor("x", (2, 2), n_dims=2**31)),
        "dimension 0": with_tensor(tensor("x", (32, 0))),
        "dimensions that overflow": with_tensor(tensor("x", (2**40, 2**40))),
        "dimension 2^63": with_tensor(tensor("x", (2**63,))),
        "unknown tensor type": with_tensor(tensor("x", (32, 32), kind=9999)),
        "a removed tensor type": with_tensor(tensor("x", (32, 32), kind=4)),
        "row no multiple of the block": with_tensor(tensor("x", (33, 2), kind=8)),
        "offset behind the end": with_tensor(tensor("x", (32, 32), offset=2**40)),
        "offset 2^64-32": with_tensor(tensor("x", (32, 32), offset=2**64 - 32)),
        "offset unaligned": with_tensor(tensor("x", (32, 32), offset=7)),
        "the same tensor twice": with_tensor(TENSORS[0]),
        "tensor name of 2^60 bytes": with_tensor(struct.pack("<Q", 2**60)),
        "no tensors": header(tensors=()),
    }
    return files
