# SPDX-License-Identifier: Apache-2.0
"""Sealed logs with one value changed and everything sealed anew: what someone could write who holds
a key."""

import hashlib
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

HEAD_KEY = slice(28, 60)  # of the head: the public key
GROUP_SEAL = 65  # of a page's head: encoding, root and hash of a column group
RAW = 1


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def commit(salt_key, content, rows):
    """Root and hash of a column group."""
    stream = Cipher(algorithms.ChaCha20(salt_key, bytes(16)), None).encryptor()
    salts = stream.update(bytes(16 * (1 + len(rows))))
    nodes = [hashlib.sha256(b"leaf" + salts[16 * i + 16:16 * i + 32] + row).digest()
             for i, row in enumerate(rows)]
    while len(nodes) > 1:
        nodes = [hashlib.sha256(b"node" + b"".join(nodes[i:i + 16])).digest()
                 for i in range(0, len(nodes), 16)]
    return nodes[0] + hashlib.sha256(b"stor" + salts[:16] + content).digest()


def change_rows(content, num_rows, is_text, row, change):
    """The content with one row changed, and all rows."""
    if is_text:
        lengths, at = [], 0
        for _ in range(num_rows):
            length, at = varint(content, at)
            lengths.append(length)
        rows = []
        for length in lengths:
            rows.append(content[at:at + length])
            at += length
    else:
        rows = [content[i::num_rows] for i in range(num_rows)]
    changed = change(rows[row])
    assert len(changed) == len(rows[row]) and changed != rows[row]
    rows[row] = changed
    if is_text:
        return bytes(lengths) + b"".join(rows), rows
    return bytes(row[i] for i in range(len(changed)) for row in rows), rows


def forge(log, block, row, change, is_text=False):
    """`log` with `change` done to a row of a column group of its first page; `block`: the group's
    place in the page."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    out, chain, at, is_done = log[:8], bytes(32), 8, False
    while at < len(log):
        tag, num_head, num_payload = struct.unpack_from("<4sIQ", log, at)
        head = bytearray(log[at + 16:at + 16 + num_head])
        payload = log[at + 112 + num_head:at + 112 + num_head + num_payload]
        at += 112 + num_head + num_payload
        if tag == b"HEAD":
            head[HEAD_KEY] = public
        if tag == b"PAGE" and not is_done:
            blocks, left = [], payload
            while left:
                size = 5 + struct.unpack_from("<I", left, 1)[0]
                blocks.append(left[:size])
                left = left[size:]
            _, place = varint(head, 0)
            num_rows, _ = varint(head, place + 8)
            old = blocks[block]
            assert old[0] == RAW, "the page is too long: its columns are compressed"
            # Encoding, size and salt key stand before the content.
            content, rows = change_rows(old[37:], num_rows, is_text, row, change)
            blocks[block] = old[:37] + content
            seal = len(head) - GROUP_SEAL * (len(blocks) - block) + 1
            head[seal:seal + GROUP_SEAL - 1] = commit(old[5:37], content, rows)
            payload, is_done = b"".join(blocks), True
        chain = hashlib.sha256(b"page" + chain + tag + head).digest()
        signature = key.sign(b"vtr/1 seal".ljust(16, b"\0") + chain)
        out += struct.pack("<4sIQ", tag, len(head), len(payload)) + head + chain + signature + payload
    return out
