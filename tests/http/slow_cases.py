# SPDX-License-Identifier: Apache-2.0
"""Many readers that read next to nothing beside eight that read at once: what the server holds for
the slow ones is bounded, and the others are answered, though more answers wait for their readers
than there are places. VITRINE_LONG: a thousand of them."""

import json
import os
import resource
import socket
import threading
import time
import urllib.parse

from http_case import HttpCase, metric, resident_kib, wait_until

SLOW = 1000 if os.environ.get("VITRINE_LONG") else 200
FAST = 8
STREAMS = 16
LONG = 2 * STREAMS  # readers of answers that are longer than what may wait for them
# What a reader may cost: the events that wait, the frames at hand, a connection.
KIB_OF_A_READER = 192
KIB_OF_ALL = 48 << 10


def request_bytes(**body):
    text = json.dumps({"stream": True, "ignore_eos": True, "logprobs": 20, "cache_prompt": False,
                       **body}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text)


def connect(server, data, buffer=None):
    place = urllib.parse.urlsplit(server.url)
    one = socket.socket()
    if buffer:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    one.connect((place.hostname, place.port))
    one.sendall(data)
    return one


class Stalls(HttpCase):
    @classmethod
    def options(cls):
        return ("--metrics", "--alias", "tiny", "--stall-seconds", "2")

    def test_who_reads_slowly_stays_and_who_reads_nothing_is_cut_off(self):
        asked = request_bytes(prompt="Once", max_tokens=1900)
        with connect(self.server, asked, 4096) as slow, connect(self.server, asked, 4096):
            slow.settimeout(10)
            begin, received, running = time.monotonic(), 0, []
            while time.monotonic() < begin + 8:
                part = slow.recv(1000)
                self.assertTrue(part, f"cut off behind {received} bytes")
                received += len(part)
                time.sleep(0.1)
                running.append(metric(self.server, "requests_running"))
            self.assertIn(2, running)
            self.assertEqual(running[-1], 1)


class SlowReaders(HttpCase):
    @classmethod
    def options(cls):
        return ("--metrics", "--alias", "tiny", "--streams", str(STREAMS), "--stall-seconds",
                "10000", "--drain-seconds", "5")

    def read_slowly(self, readers, stop):
        """Takes 100 bytes a second of each."""
        while not stop.wait(1):
            for each in list(readers):
                try:
                    each.recv(100, socket.MSG_DONTWAIT)
                except OSError:
                    pass

    def fast(self, number):
        asked = request_bytes(prompt=f"Fast reader {number}", max_tokens=64)
        with connect(self.server, asked) as one:
            one.settimeout(300)
            received = b""
            while part := one.recv(65536):
                received += part
        return received

    def test_slow_readers_hold_little_and_others_are_answered(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, SLOW + 200)), hard))
        for number in range(FAST):
            self.fast(number)
        before = resident_kib(self.server)
        readers, stop = [], threading.Event()
        reading = threading.Thread(target=self.read_slowly, args=(readers, stop))
        reading.start()
        try:
            # Some ask for more than may wait for them; what the others ask for may.
            for number in range(SLOW):
                tokens = 1900 if number < LONG else 96
                asked = request_bytes(prompt=f"Slow reader {number}", max_tokens=tokens)
                readers.append(connect(self.server, asked, 4096))
            self.assertTrue(wait_until(
                lambda: metric(self.server, "client_stalls_total") > 0, 300))
            answers = [None] * FAST

            def ask(number):
                answers[number] = self.fast(FAST + number)

            asking = [threading.Thread(target=ask, args=(number,)) for number in range(FAST)]
            for each in asking:
                each.start()
            for each in asking:
                each.join()
            for received in answers:
                self.assertTrue(received.rstrip().endswith(b"0"), received[-60:])
                self.assertIn(b"data: [DONE]", received)
            # All that can be computed has been: the long ones wait for their readers.
            self.assertTrue(wait_until(
                lambda: metric(self.server, "requests_running") +
                metric(self.server, "requests_paused") == LONG and
                metric(self.server, "requests_waiting") == 0, 300))
            full = resident_kib(self.server)
            print(f"{SLOW} slow readers: {before >> 10} MiB before, {full >> 10} MiB with them")
            self.assertLess(full - before, KIB_OF_ALL + SLOW * KIB_OF_A_READER)
            self.fast(99)
            self.assertLess(resident_kib(self.server) - full, 8 << 10)
        finally:
            stop.set()
            reading.join()
            for each in readers:
                each.close()
        self.assertTrue(wait_until(lambda: metric(self.server, "requests_running") == 0, 10))
        self.assertTrue(wait_until(lambda: metric(self.server, "http_connections") <= 1, 10))
