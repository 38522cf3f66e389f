# SPDX-License-Identifier: Apache-2.0
"""Sockets of ZeroMQ's by its C library, and msgpack: what subscribers of events need."""

import ctypes
import struct

SUB, DEALER, REQ = 2, 5, 3
SUBSCRIBE, RCVMORE, LINGER, RCVTIMEO, SNDMORE = 6, 13, 17, 27, 2
MOST_FRAME = 1 << 22

try:
    LIBRARY = ctypes.CDLL("libzmq.so.5")
    for name, result, arguments in (
            ("zmq_ctx_new", ctypes.c_void_p, []),
            ("zmq_socket", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
            ("zmq_connect", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
            ("zmq_close", ctypes.c_int, [ctypes.c_void_p]),
            ("zmq_ctx_term", ctypes.c_int, [ctypes.c_void_p]),
            ("zmq_send", ctypes.c_int,
             [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]),
            ("zmq_recv", ctypes.c_int,
             [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]),
            ("zmq_setsockopt", ctypes.c_int,
             [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]),
            ("zmq_getsockopt", ctypes.c_int,
             [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)])):
        function = getattr(LIBRARY, name)
        function.restype, function.argtypes = result, arguments
except OSError:
    LIBRARY = None


class Socket:
    """A socket that is connected to one endpoint; `receive` gives up after `seconds`."""

    def __init__(self, kind, endpoint, topic=b"", seconds=10):
        self.context = LIBRARY.zmq_ctx_new()
        self.socket = LIBRARY.zmq_socket(self.context, kind)
        self.buffer = ctypes.create_string_buffer(MOST_FRAME)
        self.set(RCVTIMEO, int(seconds * 1000))
        self.set(LINGER, 0)
        if kind == SUB:
            LIBRARY.zmq_setsockopt(self.socket, SUBSCRIBE, topic, len(topic))
        if LIBRARY.zmq_connect(self.socket, endpoint.encode()) != 0:
            raise OSError(endpoint)

    def set(self, option, value):
        number = ctypes.c_int(value)
        LIBRARY.zmq_setsockopt(self.socket, option, ctypes.byref(number), ctypes.sizeof(number))

    def send(self, *frames):
        for number, frame in enumerate(frames):
            more = SNDMORE if number + 1 < len(frames) else 0
            LIBRARY.zmq_send(self.socket, frame, len(frame), more)

    def receive(self):
        """A message's frames; None where none came."""
        frames = []
        while True:
            size = LIBRARY.zmq_recv(self.socket, self.buffer, MOST_FRAME, 0)
            if size < 0:
                return None
            frames.append(self.buffer.raw[:size])
            more, length = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
            LIBRARY.zmq_getsockopt(self.socket, RCVMORE, ctypes.byref(more), ctypes.byref(length))
            if not more.value:
                return frames

    def close(self):
        LIBRARY.zmq_close(self.socket)
        LIBRARY.zmq_ctx_term(self.context)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Unpacker:
    """Reads one value of msgpack."""

    NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
               0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    LENGTHS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self, length):
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def value(self):
        code = self.take(">B")
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        if code in self.NUMBERS:
            return self.take(self.NUMBERS[code])
        length = self.take(self.LENGTHS[code]) if code in self.LENGTHS else code & 0x0F
        if 0xA0 <= code <= 0xBF:
            return self.text(code & 0x1F)
        if code in (0xD9, 0xDA, 0xDB):
            return self.text(length)
        if 0x90 <= code <= 0x9F or code in (0xDC, 0xDD):
            return [self.value() for _ in range(length)]
        if 0x80 <= code <= 0x8F or code in (0xDE, 0xDF):
            return {self.value(): self.value() for _ in range(length)}
        raise ValueError(f"msgpack code {code:#x}")


def unpack(data):
    unpacker = Unpacker(data)
    value = unpacker.value()
    if unpacker.at != len(data):
        raise ValueError(f"{len(data) - unpacker.at} bytes behind the value")
    return value
