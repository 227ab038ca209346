"""Bodies of HTTP answers, unpacked piece by piece: their sender chose what they unpack to."""

import asyncio
import zlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import httpx

PIECE_BYTES: Final = 2**16
"""Longest piece that a packed body is unpacked to."""


async def read_pieces(response: "httpx.Response") -> AsyncGenerator[bytes]:
    """Yield the body of an answer to a request with `Accept-Encoding: gzip`, as it comes.

    Raises `httpx.DecodingError` for any other packing, gzip in gzip included.
    """
    import httpx

    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip"):
        raise httpx.DecodingError(
            f"it is compressed with {packing[:40]!r}, but only gzip was requested; turn its "
            "compression off",
            request=response.request,
        )
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    async for part in cast("httpx.AsyncByteStream", response.stream):
        if packing == "identity":
            yield part
            continue
        if unpacker.eof:
            raise httpx.DecodingError("bytes follow the end of its gzip", request=response.request)
        while part:
            try:
                piece = unpacker.decompress(part, PIECE_BYTES)
            except zlib.error as error:
                raise httpx.DecodingError(
                    f"it is no gzip: {error}", request=response.request
                ) from error
            part = unpacker.unconsumed_tail
            yield piece
            await asyncio.sleep(0)  # one part may unpack to a thousand times its size
