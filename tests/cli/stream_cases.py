# SPDX-License-Identifier: Apache-2.0
"""generate --audit-stream: the messages, decoded by Protocol Buffers' own library with the schema of
docs/audit_stream.proto, against the JSON export of the same run."""

import importlib
import io
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

from tool import (MODEL, ORACLES, PROMPT, TIMEOUT, VITRINE, AuditCase, file_size_limit,
                  write_byte_model)

try:
    from google.protobuf import proto
    from grpc_tools import protoc
except ImportError:
    protoc = None

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "docs" / "audit_stream.proto"


def load_schema():
    """The module that protoc makes of the schema."""
    with tempfile.TemporaryDirectory() as folder:
        code = protoc.main(["protoc", f"-I{SCHEMA.parent}", f"--python_out={folder}", str(SCHEMA)])
        if code != 0:
            raise RuntimeError("protoc refuses the schema")
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("audit_stream_pb2")
        finally:
            sys.path.remove(folder)


def delimited(message):
    """The standard framing; maps in the order of their keys."""
    body = message.SerializeToString(deterministic=True)
    size, prefix = len(body), bytearray()
    while size >= 128:
        prefix.append(size & 127 | 128)
        size >>= 7
    return bytes(prefix) + bytes([size]) + body


def halves(data):
    return struct.unpack(f"<{len(data) // 2}e", data)


def bfloat16s(data):
    words = struct.unpack(f"<{len(data) // 2}H", data)
    return struct.unpack(f"<{len(words)}f", b"".join(struct.pack("<I", w << 16) for w in words))


@unittest.skipIf(protoc is None, "no grpcio-tools")
class Stream(AuditCase):
    @classmethod
    def setUpClass(cls):
        cls.schema = load_schema()

    def messages(self, data):
        """The messages of a whole stream: head first, end last."""
        found, stream = [], io.BytesIO(data)
        while message := proto.parse_length_prefixed(self.schema.Message, stream):
            found.append(message)
        written = [delimited(message) for message in found]
        self.assertEqual(b"".join(written[1:]), data[len(written[0]):],
                         "not the encoding that Protocol Buffers' own library writes")
        # The order of a map's entries is left open, and the head has maps.
        self.assertEqual(sorted(written[0]), sorted(data[:len(written[0])]))
        return found

    def records(self, messages):
        """The steps in the shape of vitrine.audit/1, without what only the log has."""
        head = messages[0].head
        full = head.level == self.schema.FULL
        self.assertEqual(len(set(head.layers[i].layer for i in range(head.num_layers))),
                         head.num_layers)
        records = []
        for message in messages:
            if message.WhichOneof("content") != "step":
                continue
            step = message.step
            count = len(step.tokens)
            weights = iter(step.weights if full else halves(step.weights_half))
            norms = iter(step.norms if full else bfloat16s(step.norms_bfloat16))
            experts, probs = iter(step.experts), iter(step.router_probs)
            scores = iter(step.scores if full else halves(step.scores_half))
            keys = iter(step.selection_keys if full else halves(step.selection_keys_half))
            logprobs = step.logprobs if full else halves(step.logprobs_half)
            entropies = step.entropies if full else halves(step.entropies_half)
            others = (step.alternative_logprobs if full else halves(step.alternative_logprobs_half))
            terms = step.terms if full else halves(step.terms_half)
            at = list(step.predicted_at)
            if not at and step.predicted:
                at = list(range(count))
            self.assertEqual(len(at), len(step.predicted))
            width = len(step.alternatives) // max(1, len(at))
            for index in range(count):
                record = {"sequence": step.sequences[index], "position": step.positions[index],
                          "token": step.tokens[index], "layers": [], "prediction": None}
                for layer in head.layers:
                    one = {"layer": layer.layer, "residual_norm": next(norms),
                           "experts": [next(experts) for _ in range(layer.top_k)],
                           "weights": [next(weights) for _ in range(layer.top_k)]}
                    if layer.has_scores:
                        one["scores"] = [next(scores) for _ in range(layer.top_k)]
                        one["selection_keys"] = [next(keys) for _ in range(layer.top_k)]
                    if full and layer.num_experts:
                        one["router_probs"] = [next(probs) for _ in range(layer.num_experts)]
                    record["layers"].append(one)
                if index in at:
                    row = at.index(index)
                    ids = step.alternatives[row * width:(row + 1) * width]
                    prediction = {
                        "token": step.predicted[row],
                        "generated": not (step.scored and step.scored[row]),
                        "logprob": logprobs[row], "entropy": entropies[row],
                        "top_logprobs": [
                            {"token": token, "logprob": logprob} for token, logprob in
                            zip(ids, others[row * width:(row + 1) * width]) if token != 2**32 - 1]}
                    if head.terms:
                        size = len(head.terms)
                        chosen = terms[2 * row * size:][:size]
                        prediction["attribution"] = {
                            "logit": step.logits[2 * row], "rounding": step.roundings[2 * row],
                            "runner_up": step.runners_up[row], "terms": list(chosen),
                            "other": list(terms[(2 * row + 1) * size:][:size])}
                    if step.sampler_candidates and step.sampler_candidates[row]:
                        prediction["sampler"] = {
                            "candidates": step.sampler_candidates[row],
                            "probability": (step.sampler_probabilities if full else
                                            halves(step.sampler_probabilities_half))[row]}
                    if step.constraint_allowed and step.constraint_allowed[row]:
                        flags = step.constraint_flags[row]
                        prediction["constraint"] = {
                            "allowed": step.constraint_allowed[row],
                            "removed": (step.constraint_removed if full else
                                        halves(step.constraint_removed_half))[row],
                            "limited": bool(flags & 1), "first_ruled_out": bool(flags & 2),
                            "attempt": flags >> 2}
                    record["prediction"] = prediction
                records.append(record)
        return records

    def same(self, found, expected):
        """Equal, where the JSON's shortest digits are read as float32."""
        if isinstance(expected, float):
            self.assertEqual(struct.pack("<f", found), struct.pack("<f", expected))
        elif isinstance(expected, dict):
            in_the_log_alone = {"text", "bytes", "piece", "logits_digest", "mask_us"}
            for key in set(expected) - in_the_log_alone:
                self.same(found[key], expected[key])
        elif isinstance(expected, list):
            self.assertEqual(len(found), len(expected))
            for one, other in zip(found, expected):
                self.same(one, other)
        else:
            self.assertEqual(found, expected)

    def check(self, *more, model=MODEL):
        level = more[more.index("--audit-level") + 1] if "--audit-level" in more else "standard"
        result = self.generate("run.vtr", "--audit-stream", "run.stream", *more, model=model)
        self.assertIn(b", stream run.stream (", result.stderr)
        messages = self.messages((self.folder / "run.stream").read_bytes())
        log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        head, end = messages[0].head, messages[-1].end
        self.assertEqual(messages[0].WhichOneof("content"), "head")
        self.assertEqual(messages[-1].WhichOneof("content"), "end")
        self.assertEqual(head.level, {"standard": 1, "full": 2}[level])
        self.assertEqual(dict(head.sha256), log["model"]["sha256"])
        self.assertEqual((head.seed, head.vocab_size, head.num_layers),
                         (log["seed"], log["model"]["vocab_size"], log["model"]["num_layers"]))
        self.assertEqual(head.sampler["top_k"], "40")
        self.assertEqual(dict(head.engine), log["runtime"]["options"])
        self.assertEqual(end.stop_reason, log["stop_reason"])
        self.assertEqual((end.passes, end.tokens, end.generated, end.scored, end.lost),
                         (log["counts"]["passes"], log["counts"]["tokens"],
                          log["counts"]["generated"], log["counts"]["scored"], 0))
        events = [m.event.kind for m in messages if m.WhichOneof("content") == "event"]
        self.assertEqual((events, end.events), ([0, 3], 2))
        records = self.records(messages)
        self.assertEqual(len(records), len(log["records"]))
        for found, expected in zip(records, log["records"]):
            prediction = expected["prediction"]
            attribution = prediction and prediction.pop("attribution", None)
            self.same(found, expected)
            if not attribution:
                continue
            one = found["prediction"]["attribution"]
            self.same(one["logit"], attribution["logit"])
            self.same(one["rounding"], attribution["rounding"])
            self.assertEqual(one["runner_up"], attribution["runner_up"]["token"])
            self.same(one["terms"], [term["value"] for term in attribution["terms"]])
            self.same(one["other"], [term["runner_up"] for term in attribution["terms"]])
        return messages

    def test_routers_with_scores(self):
        write_byte_model(self.folder / "model", ORACLES / "glm4_moe")
        for level in ("standard", "full"):
            layers = self.check("--audit-level", level, model="model")[0].head.layers
            self.assertEqual({(layer.router, layer.has_scores) for layer in layers if layer.top_k > 0},
                             {(2, True)})
            self.assertEqual({(layer.router, layer.has_scores) for layer in layers if layer.top_k == 0},
                             {(0, False)})

    def test_the_same_as_the_log(self):
        self.check()
        self.check("--prompt-logprobs", "--attribution")
        self.check("--audit-level", "full", "--prompt-logprobs", "--attribution")

    def test_of_a_federation(self):
        federation = pathlib.Path(MODEL).parent / "fractalmoe-30m-adapters" / "federation.json"
        for level in ("standard", "full"):
            self.succeed("federate", federation, "-p", PROMPT, "-n", 9, "--attribution", "--audit",
                         "run.vtr", "--audit-stream", "run.stream", "--audit-level", level)
            messages = self.messages((self.folder / "run.stream").read_bytes())
            log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
            sizes = list(messages[0].head.specialist_terms)
            self.assertEqual((len(sizes), sum(sizes)), (3, len(messages[0].head.terms)))
            expected = [record["prediction"] for record in log["records"] if record["prediction"]]
            for step in (m.step for m in messages if m.WhichOneof("content") == "step"):
                terms = iter(step.terms if level == "full" else halves(step.terms_half))
                logits, roundings = iter(step.logits), iter(step.roundings)
                for runner_up in step.runners_up:
                    for one in expected.pop(0)["federation"]["specialists"]:
                        own = one["attribution"]
                        self.assertEqual(own["runner_up"]["token"], runner_up)
                        for side, key in ((own, "value"), (own["runner_up"], "runner_up")):
                            self.same(next(logits), side["logit"])
                            self.same(next(roundings), side["rounding"])
                            for term in own["terms"]:
                                self.same(next(terms), term[key])
                self.assertEqual([*terms, *logits, *roundings], [])
            self.assertEqual(expected, [])

    def test_alone(self):
        self.generate("run.vtr", "--audit-stream", "both.stream")
        self.succeed("generate", MODEL, "-p", PROMPT, "-n", 40, "--seed", 5, "--ignore-end-of-text",
                     "--audit-stream", "alone.stream")
        both, alone = (self.messages((self.folder / name).read_bytes())
                       for name in ("both.stream", "alone.stream"))
        self.assertEqual([m.SerializeToString() for m in both[1:-1]],
                         [m.SerializeToString() for m in alone[1:-1]])
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["alone.stream", "both.stream", "run.vtr"])

    def start(self, *more, **options):
        return subprocess.Popen([VITRINE, "generate", MODEL, "-p", PROMPT, "-n", "60", "--seed", "5",
                                 "--ignore-end-of-text", "--json", *more], cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def test_a_named_pipe_and_a_socket(self):
        os.mkfifo(self.folder / "pipe")
        process = self.start("--audit-stream", "pipe")
        data = (self.folder / "pipe").read_bytes()
        self.assertEqual(process.wait(TIMEOUT), 0, process.stderr.read())
        process.communicate()
        self.assertEqual(self.messages(data)[-1].end.generated, 60)
        received = []
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.folder / "s"))
            server.listen()

            def read():
                connection, _ = server.accept()
                with connection:
                    while block := connection.recv(65536):
                        received.append(block)

            reader = threading.Thread(target=read)
            reader.start()
            process = self.start("--audit-stream", "unix:s")
            self.assertEqual(process.wait(TIMEOUT), 0, process.stderr.read())
            process.communicate()
            reader.join()
        self.assertEqual(self.messages(b"".join(received))[-1].end.generated, 60)
        self.fail_with(1, ["unix:s", "nobody listens"], "generate", MODEL, "-p", "x",
                       "--audit-stream", "unix:s")

    def broken_pipe(self, *more):
        """The reader goes away after the first bytes."""
        read, write = os.pipe()
        process = self.start("--audit-stream", f"/proc/self/fd/{write}", *more, pass_fds=[write])
        os.close(write)
        os.read(read, 10)
        os.close(read)
        out, error = process.communicate(timeout=TIMEOUT)
        return process.returncode, out, error

    def test_a_reader_that_goes_away(self):
        code, _, error = self.broken_pipe()
        self.assertEqual(code, 1, error)
        self.assert_one_line(error, "--audit-stream", "Broken pipe")
        code, out, error = self.broken_pipe("--audit-on-error", "degrade", "--audit", "run.vtr")
        self.assertEqual(code, 0, error)
        self.assertEqual(len(json.loads(out)["tokens"]), 60)
        self.assertIn(b"positions are not in it", error)
        self.assertIn("complete", self.verify())

    def test_full_disk(self):
        (self.folder / "run.stream").write_bytes(b"older")
        self.fail_with(1, ["run.stream"], "generate", MODEL, "-p", PROMPT, "-n", "3",
                       "--audit-stream", "run.stream", **file_size_limit(100))
        self.assertEqual((self.folder / "run.stream").read_bytes(), b"older")

    def test_a_first_message_that_cannot_be_sent(self):
        run = ("generate", MODEL, "-p", PROMPT, "-n", 5, "--audit-stream", "/dev/full")
        self.fail_with(1, ["/dev/full", "No space left"], *run)
        result = self.succeed(*run, "--audit-on-error", "degrade", "--audit", "run.vtr", "--json")
        self.assertEqual(len(json.loads(result.stdout)["tokens"]), 5)
        self.assertIn(b"positions are not in it", result.stderr)
        self.assertIn("complete", self.verify())

    def test_bad_options(self):
        for words, more in ((["--audit-level counters"], ["--audit-level", "counters"]),
                            (["--audit-mode none"], ["--audit-mode", "none"]),
                            (["spill"], ["--audit-when-behind", "spill"]),
                            (["not encrypted"], ["--encrypt-for", "key.pub"]),
                            (["leaves nothing out"], ["--redact", "prompt"])):
            self.fail_with(2, words, "generate", MODEL, "-p", "x", "--audit", "run.vtr",
                           "--audit-stream", "s", *more)
        self.fail_with(1, ["gone/s"], "generate", MODEL, "-p", "x", "--audit-stream", "gone/s")
        self.fail_with(1, ["directory"], "generate", MODEL, "-p", "x", "--audit-stream", ".")
        self.fail_with(2, ["unix:"], "generate", MODEL, "-p", "x", "--audit-stream", "unix:")
