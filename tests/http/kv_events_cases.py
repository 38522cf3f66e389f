# SPDX-License-Identifier: Apache-2.0
"""Events about kept blocks: a subscriber that knows of them by these alone, as a router does."""

import hashlib
import pathlib
import re
import subprocess
import unittest

from http_case import MODEL, TOOL, HttpCase, metric, wait_until
from served import served
from zeromq import DEALER, LIBRARY, REQ, SUB, Socket, unpack

BLOCK = 64
END = b"\xff" * 8
ADAPTER = pathlib.Path(MODEL).parent / "fractalmoe-30m-adapters" / "science"


def ids(count, seed):
    """Ids that are anybody's but those of another seed."""
    return [100 + (seed * 7919 + place * (13 + seed)) % 3000 for place in range(count)]


def names(prompt, tenant="", adapter=""):
    """The names of the whole blocks of a prompt, as vitrine/kv_events.h says that they are made."""
    def first_bytes(data):
        return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")

    name = first_bytes(b"vitrine kv blocks\0" + adapter.encode() + b"\0" + tenant.encode())
    found = []
    for at in range(0, len(prompt) - BLOCK + 1, BLOCK):
        block = prompt[at:at + BLOCK]
        name = first_bytes(name.to_bytes(8, "little") +
                           b"".join(one.to_bytes(4, "little") for one in block))
        found.append(name)
    return found


def places(server):
    """Endpoints of each model's events: where they come, and where they come again."""
    found = []
    for line in server.errors:
        told = re.search(r"kept blocks of (\S+) are published at ([^\s,]+)(?:, again at (\S+))?", line)
        if told:
            found.append(told.groups())
    return found


class Router:
    """Applies events; what makes no sense fails the test."""

    def __init__(self, case):
        self.case, self.parents, self.clears, self.next = case, {}, 0, 0

    def take(self, message, topic=b"kv"):
        self.case.assertEqual(len(message), 3)
        self.case.assertEqual(message[0], topic)
        self.case.assertEqual(len(message[1]), 8)
        self.case.assertEqual(int.from_bytes(message[1], "big"), self.next)
        self.next += 1
        batch = unpack(message[2])
        self.case.assertEqual(len(batch), 3)
        self.case.assertIsInstance(batch[0], float)
        self.case.assertEqual(batch[2], 0)
        for event in batch[1]:
            getattr(self, event["type"])(event)
        return batch[1]

    def BlockStored(self, event):
        case = self.case
        case.assertEqual(list(event), ["type", "block_hashes", "parent_block_hash", "token_ids",
                                       "block_size", "lora_id", "medium", "lora_name"])
        case.assertEqual((event["block_size"], event["medium"]), (BLOCK, "GPU"))
        case.assertEqual(len(event["token_ids"]), BLOCK * len(event["block_hashes"]))
        parent = event["parent_block_hash"]
        case.assertTrue(parent is None or parent in self.parents)
        for name in event["block_hashes"]:
            case.assertNotIn(name, self.parents)
            self.parents[name] = parent
            parent = name

    def BlockRemoved(self, event):
        self.case.assertEqual(list(event), ["type", "block_hashes", "medium"])
        for name in event["block_hashes"]:
            self.case.assertNotIn(name, self.parents.values())
            del self.parents[name]

    def AllBlocksCleared(self, event):
        self.case.assertEqual(list(event), ["type"])
        self.parents, self.clears = {}, self.clears + 1

    def count(self, prompt, **owner):
        found = 0
        for name in names(prompt, **owner):
            if name not in self.parents:
                break
            found += 1
        return found


@unittest.skipIf(LIBRARY is None, "there is no libzmq.so.5")
class EventCase(HttpCase):
    TENANT_KEY = None

    @classmethod
    def options(cls):
        return ("--alias", "tiny", "--metrics", "--kv-events", "tcp://127.0.0.1:*",
                "--kv-events-replay", "tcp://127.0.0.1:*", "--kv-events-topic", "kv", *cls.more())

    @classmethod
    def more(cls):
        return ()

    def again(self, start=0, number=0):
        """All messages from that number on, by the socket that says them again."""
        _, _, endpoint = places(self.server)[number]
        with Socket(DEALER, endpoint) as socket:
            socket.send(b"", start.to_bytes(8, "big"))
            messages = []
            while True:
                frames = socket.receive()
                self.assertIsNotNone(frames)
                self.assertEqual((len(frames), frames[0]), (4, b""))
                if frames[2] == END:
                    self.assertEqual(frames[1:], [b"", END, b""])
                    return messages
                messages.append(frames[1:])

    def ask_ids(self, prompt, headers=None, **body):
        reply = self.ask("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0,
                                             "ignore_eos": True, **body}, headers=headers)
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    def router(self, until=lambda router: True):
        """One that has heard everything until then."""
        made = []

        def is_there():
            made[:] = [Router(self)]
            for message in self.again():
                made[0].take(message)
            return until(made[0])

        self.assertTrue(wait_until(is_there))
        return made[0]


class KvEvents(EventCase):
    def test_blocks_come_to_who_listens(self):
        _, endpoint, _ = places(self.server)[0]
        common = ids(200, 1)
        with Socket(SUB, endpoint, b"kv", seconds=0.5) as socket:
            for seed in range(50, 90):  # until the subscription is known there
                self.ask_ids(ids(70, seed))
                message = socket.receive()
                if message is not None:
                    break
            self.assertEqual(message[0], b"kv")
            first = int.from_bytes(message[1], "big")
            socket.set(27, 10000)
            self.ask_ids(common)
            router = Router(self)
            router.next = first + 1
            stored, = router.take(socket.receive())
            self.assertEqual(stored["block_hashes"], names(common))
            self.assertEqual(stored["token_ids"], common[:192])
            self.assertIsNone(stored["parent_block_hash"])
            self.assertIsNone(stored["lora_id"])
            self.assertIsNone(stored["lora_name"])
            # It parts within the second block: what is before that is not told again.
            other = common[:100] + ids(150, 2)
            self.assertEqual(self.ask_ids(other), 100)
            stored, = router.take(socket.receive())
            self.assertEqual(stored["parent_block_hash"], names(other)[0])
            self.assertEqual(stored["block_hashes"], names(other)[1:])
            self.assertEqual(stored["token_ids"], other[64:192])

    def test_another_topic_is_silent(self):
        _, endpoint, _ = places(self.server)[0]
        with Socket(SUB, endpoint, b"other", seconds=0.5) as socket:
            for seed in range(90, 93):
                self.ask_ids(ids(70, seed))
            self.assertIsNone(socket.receive())

    def test_what_was_missed_is_said_again(self):
        prompt = ids(130, 3)
        self.ask_ids(prompt)
        router = self.router(lambda one: one.count(prompt) == 2)
        last = router.next - 1
        messages = self.again(last)
        self.assertEqual([one[:2] for one in messages], [[b"kv", last.to_bytes(8, "big")]])
        self.assertEqual(self.again(last + 1), [])
        self.assertEqual(self.again(2 ** 64 - 1), [])

    def test_hostile_requests_are_let_pass(self):
        _, endpoint, replay = places(self.server)[0]
        with Socket(DEALER, replay, seconds=0.3) as socket:
            for frames in ((b"",), (b"", b""), (b"", b"short"), (b"x", b"\0" * 8),
                           (b"", b"\0" * 8, b"more"), (b"", b"\0" * 900),
                           tuple(b"" for _ in range(300))):
                socket.send(*frames)
            self.assertIsNone(socket.receive())
            socket.send(b"", b"\0" * 5000)  # which ends the connection
        sockets = [Socket(DEALER, replay, seconds=0.3) for _ in range(40)]
        for socket in sockets:
            for _ in range(20):
                socket.send(b"", b"\0" * 8)
        for socket in sockets:
            socket.close()
        with Socket(SUB, endpoint, b"k" * 2000, seconds=0.1) as socket:
            socket.receive()
        self.router()
        self.assertEqual(self.ask("/health").status, 200)

    def test_who_asks_as_req_does_gets_one_message(self):
        self.ask_ids(ids(70, 4))
        self.router(lambda one: one.next > 0)
        with Socket(REQ, places(self.server)[0][2]) as socket:
            socket.send(b"\0" * 8)
            frames = socket.receive()
            self.assertEqual(frames[:2], [b"kv", b"\0" * 8])


class Evictions(EventCase):
    @classmethod
    def more(cls):
        return ("--kv-bytes", "4MB", "--streams", "2", "-c", "512")

    def test_what_gives_way_is_told(self):
        common = ids(150, 1)
        prompts = [common[:150 if seed % 2 else 70] + ids(120 + seed, seed) for seed in range(40)]
        for prompt in prompts:
            self.ask_ids(prompt, max_tokens=3)
        self.assertGreater(metric(self.server, "evicted_prefixes_total"), 5)
        for prompt in prompts[::-1]:
            router = self.router()
            known = router.count(prompt[:-1])
            self.assertEqual(self.ask_ids(prompt) // BLOCK, known)
        self.assertLess(len(router.parents), sum(len(names(one)) for one in prompts) / 2)


class Arrays(EventCase):
    @classmethod
    def more(cls):
        return ("--kv-events-encoding", "array", "--adapter", str(ADAPTER))

    def test_events_are_those_of_older_vllm(self):
        prompt = ids(140, 1)
        self.ask_ids(prompt)
        self.ask_ids(prompt, model="science")
        self.assertTrue(wait_until(lambda: len(self.again()) >= 2))
        plain, adapted = (unpack(message[2])[1][0] for message in self.again()[:2])
        self.assertEqual(plain, ["BlockStored", names(prompt), None, prompt[:128], BLOCK, None,
                                 "GPU", None])
        self.assertEqual(adapted, ["BlockStored", names(prompt, adapter="science"), None,
                                   prompt[:128], BLOCK, 1, "GPU", "science"])


class TenantEvents(EventCase):
    @classmethod
    def more(cls):
        keys = pathlib.Path(cls.folder.name) / "keys"
        keys.write_text("alice alice-key-0123\nbob bob-key-456789\n")
        return ("--api-key-file", str(keys))

    def test_tenants_have_hashes_of_their_own(self):
        prompt = ids(140, 1)
        for key in ("alice-key-0123", "bob-key-456789"):
            self.assertEqual(self.ask_ids(prompt, {"Authorization": f"Bearer {key}"}), 0)
        router = self.router(lambda one: len(one.parents) == 4)
        self.assertEqual(router.count(prompt, tenant="alice"), 2)
        self.assertEqual(router.count(prompt, tenant="bob"), 2)
        self.assertEqual(router.count(prompt), 0)


@unittest.skipIf(LIBRARY is None, "there is no libzmq.so.5")
class EventOptions(unittest.TestCase):
    def test_nothing_is_published_unless_asked_for(self):
        def threads(*options):
            with served(MODEL, *options) as server:
                folder = pathlib.Path(f"/proc/{server.process.pid}/task")
                names_of = [(one / "comm").read_text() for one in folder.iterdir()]
                return len(places(server)), sum(name.startswith("ZMQ") for name in names_of)

        self.assertEqual(threads(), (0, 0))
        self.assertEqual(threads("--kv-events", "tcp://127.0.0.1:*"), (1, 2))

    def test_a_config_of_vllm_is_read_and_the_end_clears(self):
        config = ('{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": '
                  '"tcp://127.0.0.1:*", "topic": "kv@pod@{model}", "hwm": 1000}')
        with served(MODEL, "--alias", "tiny", "--kv-events-config", config) as server:
            (name, endpoint, replay), = places(server)
            self.assertEqual((name, replay), ("tiny", None))
            socket = Socket(SUB, endpoint, b"kv@", seconds=0.5)
            for seed in range(40):
                server.ask("/v1/completions", {"prompt": ids(70, seed), "max_tokens": 1})
                message = socket.receive()
                if message is not None:
                    break
            self.assertEqual(message[0], b"kv@pod@tiny")
            server.process.terminate()
            socket.set(27, 10000)
            events = unpack(socket.receive()[2])[1]
            self.assertEqual(events, [{"type": "AllBlocksCleared"}])
            socket.close()
        with served(MODEL, "--kv-events-config", '{"endpoint": "tcp://*:5557"}') as server:
            self.assertEqual(places(server), [])

    def refusal(self, *options):
        done = subprocess.run([TOOL, "serve", MODEL, "--port", "0", *options], timeout=60,
                              capture_output=True, text=True, check=False)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        return done.returncode, lines[0]

    def test_endpoints_that_are_none_are_refused(self):
        for endpoint, expected in (("udp://127.0.0.1:1", "tcp://ADDRESS:PORT"),
                                   ("tcp://127.0.0.1", "tcp://ADDRESS:PORT"),
                                   ("tcp://127.0.0.1:99999", "a port from 1"),
                                   ("tcp://127.0.0.1:http", "a port from 1"),
                                   ("tcp://127.0.0.1:-5", "a port from 1"),
                                   ("ipc://", "ipc://PATH"),
                                   ("tcp://*:5557", "--kv-events-public"),
                                   ("tcp://0.0.0.0:5557", "--kv-events-public"),
                                   ("tcp://[::]:5557", "--kv-events-public")):
            code, line = self.refusal("--kv-events", endpoint)
            self.assertEqual(code, 2, line)
            self.assertIn("--kv-events", line)
            self.assertIn(endpoint, line)
            self.assertIn(expected, line)
        code, line = self.refusal("--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay",
                                  "tcp://10.0.0.1:5558")
        self.assertEqual(code, 2)
        self.assertIn("--kv-events-replay", line)

    def test_an_endpoint_that_is_taken_is_told(self):
        with served(MODEL, "--kv-events", "tcp://127.0.0.1:*") as server:
            endpoint = places(server)[0][1]
            code, line = self.refusal("--kv-events", endpoint)
            self.assertEqual(code, 2, line)
            self.assertIn(endpoint, line)
            self.assertIn("in use", line)
        code, line = self.refusal("--kv-events", "tcp://203.0.113.7:5557", "--kv-events-public")
        self.assertEqual(code, 2, line)
        self.assertIn("203.0.113.7", line)

    def test_configs_that_are_none_are_refused(self):
        for config in ("[]", "{", '{"enable_kv_cache_events": 1}', '{"hwm": 0}', '{"hwm": 1e99}',
                       '{"topic": 5}', '{"publisher": "nats"}', '{"endpoints": "tcp://*:1"}',
                       "[" * 100000):
            code, line = self.refusal("--kv-events-config", config)
            self.assertEqual(code, 2, line)
            self.assertIn("--kv-events-config", line)
        code, line = self.refusal("--kv-events-config", '{"enable_kv_cache_events": true}')
        self.assertEqual(code, 2)
        self.assertIn("tcp://*:5557", line)
        self.assertEqual(self.refusal("--kv-events", "tcp://127.0.0.1:*", "--no-cache")[0], 2)


if __name__ == "__main__":
    unittest.main()
