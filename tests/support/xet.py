"""A local Hub with Xet storage for large files like the real Hub: chunks, with a separate token.

Supports only the requests of `hf_xet` in tests. Storage has no chunks in advance, uploads need no grants, and
shards report no progress.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING

from typing_extensions import override

from support.pushes import Pushable

if TYPE_CHECKING:
    from support.hub import Request
    from support.pushes import Answer

STORAGE = "/storage"
TOKEN = "of_the_storage"  # noqa: S105 - opens nothing
JSON = {"Content-Type": "application/json"}
HEADER = 8
"""Bytes before a chunk: version (1), compressed size (3), compression (1), uncompressed size (3)."""


class XetHub(Pushable):
    """Repositories with large files in Xet storage. The concatenated chunks of a xorb form a file."""

    @override
    def serve(self, asked: Request) -> Answer:
        path = asked.path.partition("?")[0]
        if "/xet-write-token/" in path:
            until = int(time.time()) + 3600
            said = {"casUrl": self.endpoint + STORAGE, "exp": until, "accessToken": TOKEN}
            return 200, JSON, json.dumps(said).encode()
        if path.startswith(f"{STORAGE}/v1/xorbs/"):
            content = b"".join(chunks(asked.body))
            self.stored[hashlib.sha256(content).hexdigest()] = content
            return 200, JSON, b'{"was_inserted": true}'
        if path == f"{STORAGE}/v1/shards":
            return 200, JSON, b'{"result": 1}'
        return super().serve(asked)


def chunks(xorb: bytes) -> list[bytes]:
    """Return the uncompressed chunks of a xorb."""
    found = []
    while xorb:
        size, preprocess = int.from_bytes(xorb[1:4], "little"), xorb[4]
        assert preprocess == 0, "random bytes do not shrink"
        found.append(xorb[HEADER : HEADER + size])
        xorb = xorb[HEADER + size :]
    return found
