"""A Hub on this machine that keeps large files in Xet storage, as the Hub does: they arrive as chunks, and under another token.

What `hf_xet` asks for, and no more: no chunk is there already, uploads come without grants, and progress of shards is not told.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING

from typing_extensions import override

from support.pushes import Pushable

if TYPE_CHECKING:
    from support.hub import Asked
    from support.pushes import Answer

STORAGE = "/storage"
TOKEN = "of_the_storage"  # noqa: S105 - opens nothing
JSON = {"Content-Type": "application/json"}
HEADER = 8
"""Bytes before a chunk: version, its size as it is sent (3), how it is compressed, its own size (3)."""


class XetHub(Pushable):
    """Repositories whose large files lie in Xet storage; of a xorb, its chunks as they are are one file."""

    @override
    def serve(self, asked: Asked) -> Answer:
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
    """Return the chunks of a xorb, which nothing has compressed."""
    found = []
    while xorb:
        size, how = int.from_bytes(xorb[1:4], "little"), xorb[4]
        assert how == 0, "random bytes do not shrink"
        found.append(xorb[HEADER : HEADER + size])
        xorb = xorb[HEADER + size :]
    return found
