# SPDX-License-Identifier: Apache-2.0
"""llama-server's own routes, as its README and its tests have them: completions, tokens,
properties and places. VITRINE_TOOL names the tool, VITRINE_MODEL a model."""

import json
import sys
import unittest

from native_case import GREEDY, PROMPT, Case


class Completion(Case):
    KEYS = {"index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted",
            "tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated",
            "stop_type", "stopping_word", "tokens_cached", "timings"}
    TIMINGS = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
               "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}

    def test_whole(self):
        answer = self.complete()
        self.assertLessEqual(self.KEYS, set(answer))
        self.assertLessEqual(self.TIMINGS, set(answer["timings"]))
        self.assertTrue(answer["content"])
        self.assertEqual(answer["tokens"], [])
        self.assertIs(answer["stop"], True)
        self.assertEqual((answer["stop_type"], answer["stopping_word"]), ("limit", ""))
        self.assertEqual(answer["timings"]["predicted_n"], 8)
        self.assertEqual(answer["tokens_predicted"], 8)
        prompt = self.ids(PROMPT, add_special=True)
        self.assertEqual(answer["tokens_evaluated"], len(prompt))
        self.assertEqual(answer["timings"]["prompt_n"] + answer["timings"]["cache_n"], len(prompt))
        self.assertIn(PROMPT, answer["prompt"])
        self.assertIs(answer["truncated"], False)
        self.assertEqual(answer["generation_settings"]["n_predict"], 8)
        self.assertEqual(answer["generation_settings"]["seed"], 1)

    def test_both_paths_are_native(self):
        self.assertEqual(self.post("/completions", prompt=PROMPT, n_predict=8, **GREEDY)["content"],
                         self.complete()["content"])

    def test_tokens_are_the_content(self):
        answer = self.complete(return_tokens=True)
        self.assertEqual(len(answer["tokens"]), 8)
        self.assertEqual(self.post("/detokenize", tokens=answer["tokens"])["content"].strip(),
                         answer["content"].strip())

    def test_stream(self):
        whole = self.complete(return_tokens=True)
        events = self.stream()
        parts, last = events[:-1], events[-1]
        self.assertTrue(all(part["stop"] is False for part in parts))
        self.assertTrue(all(len(part["tokens"]) == 1 for part in parts))
        self.assertEqual([token for part in parts for token in part["tokens"]], whole["tokens"])
        self.assertEqual([part["tokens_predicted"] for part in parts], list(range(1, 9)))
        self.assertEqual("".join(event["content"] for event in events), whole["content"])
        self.assertLessEqual(self.KEYS, set(last))
        self.assertIs(last["stop"], True)
        self.assertEqual((last["stop_type"], last["tokens"]), ("limit", []))
        for name in ("adaptive_target", "adaptive_decay"):
            self.assertIn(name, last["generation_settings"])

    def test_timings_per_token(self):
        parts = self.stream(timings_per_token=True, return_progress=True)[:-1]
        self.assertEqual([part["timings"]["predicted_n"] for part in parts], list(range(1, 9)))

    def test_prompts_of_each_form(self):
        ids = self.ids(PROMPT, add_special=True)
        text = self.complete()
        self.assertEqual(self.complete(prompt=ids)["content"], text["content"])
        self.assertEqual(self.complete(prompt={"prompt_string": PROMPT})["content"],
                         text["content"])
        both = self.complete(prompt=[ids, PROMPT, {"prompt_string": PROMPT}])
        self.assertEqual([each["content"] for each in both], [text["content"]] * 3)
        self.assertEqual([each["index"] for each in both], [0, 1, 2])
        self.assertIsInstance(self.complete(prompt=[PROMPT]), dict)
        mixed = self.complete(prompt=[ids[0], PROMPT, ids[1], ids[2]])
        self.assertEqual(mixed["tokens_evaluated"], 3 + len(self.ids(PROMPT)))

    def test_batches_stream_by_index(self):
        events = self.stream(prompt=[PROMPT, "The sky is"])
        self.assertEqual({event["index"] for event in events}, {0, 1})
        self.assertEqual(sum(event["stop"] for event in events), 2)

    def test_several_answers(self):
        answers = self.complete(n_cmpl=3, temperature=1.0, seed=5, top_k=0)
        self.assertEqual(len(answers), 3)
        self.assertGreater(len({each["content"] for each in answers}), 1)

    def test_seeds(self):
        draw = dict(temperature=1.0, n_predict=24, top_k=0, top_p=1.0, min_p=0.0)
        first, again = self.complete(seed=7, **draw), self.complete(seed=7, **draw)
        self.assertEqual(first["content"], again["content"])
        drawn = [self.complete(seed=-1, **draw) for _ in range(2)]
        self.assertNotEqual(drawn[0]["content"], drawn[1]["content"])
        seed = drawn[0]["generation_settings"]["seed"]
        self.assertEqual(self.complete(seed=seed, **draw)["content"], drawn[0]["content"])

    def test_stop_words(self):
        whole = self.complete(n_predict=16)["content"]
        word = whole[len(whole) // 2:len(whole) // 2 + 3]
        for stop in ([word], word, ["", word, "never said"]):
            answer = self.complete(n_predict=16, stop=stop)
            self.assertEqual((answer["stop_type"], answer["stopping_word"]), ("word", word))
            self.assertEqual(answer["content"], whole[:whole.index(word)])
        events = self.stream(n_predict=16, stop=[word])
        self.assertEqual("".join(event["content"] for event in events), whole[:whole.index(word)])
        self.assertEqual(events[-1]["stopping_word"], word)
        self.assertEqual(self.complete(stop=[])["stop_type"], "limit")

    def test_context_ends_it(self):
        answer = self.complete(n_predict=-1, ignore_eos=True)
        self.assertEqual((answer["truncated"], answer["stop_type"]), (True, "limit"))
        self.assertEqual(answer["generation_settings"]["n_predict"], -1)

    def test_no_token(self):
        answer = self.complete(n_predict=0)
        self.assertEqual((answer["content"], answer["tokens_predicted"]), ("", 0))

    def test_ignore_eos(self):
        biases = self.complete(ignore_eos=True)["generation_settings"]["logit_bias"]
        self.assertTrue(biases)
        self.assertTrue(all(each["bias"] is None for each in biases))
        self.assertEqual(self.complete()["generation_settings"]["logit_bias"], [])

    def test_probabilities(self):
        answer = self.complete(n_probs=10, n_predict=5)
        self.assertEqual(len(answer["completion_probabilities"]), 5)
        for event in self.stream(n_probs=10, n_predict=5)[:-1]:
            self.assertEqual(len(event["completion_probabilities"]), 1)
        for token in answer["completion_probabilities"]:
            self.assertEqual(len(token["top_logprobs"]), 10)
            for one in (token, *token["top_logprobs"]):
                self.assertLessEqual({"id", "token", "bytes", "logprob"}, set(one))
                self.assertLessEqual(one["logprob"], 0)
            self.assertEqual(token["top_logprobs"][0]["id"], token["id"])
            self.assertEqual(bytes(token["bytes"]).decode(errors="replace"), token["token"])
        self.assertNotIn("completion_probabilities", self.complete())

    def test_logit_bias(self):
        first = self.complete(n_predict=1, return_tokens=True)["tokens"][0]
        text = self.post("/detokenize", tokens=[first])["content"]
        for bias in ([[first, False]], [[first, -100]], {str(first): -100}, [[text, False]],
                     {text: False}):
            answer = self.complete(n_predict=1, return_tokens=True, logit_bias=bias)
            self.assertNotEqual(answer["tokens"], [first], bias)
        answer = self.complete(n_predict=4, return_tokens=True, logit_bias=[[5, 1000]])
        self.assertEqual(answer["tokens"], [5] * 4)

    def test_response_fields(self):
        answer = self.complete(
            response_fields=["content", "generation_settings/n_predict", "prompt", "no/such"])
        self.assertEqual(set(answer), {"content", "generation_settings/n_predict", "prompt"})
        self.assertEqual(answer["generation_settings/n_predict"], 8)
        self.assertIn("generation_settings", self.complete(response_fields=[]))

    def test_grammar_and_schema(self):
        answer = self.complete(grammar='root ::= "yes" | "no"', n_predict=16)
        self.assertIn(answer["content"], ("yes", "no"))
        self.assertEqual(answer["stop_type"], "eos")
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                  "additionalProperties": False}
        answer = self.complete(json_schema=schema, n_predict=64)
        self.assertIsInstance(json.loads(answer["content"])["a"], bool)
        self.assertIsInstance(json.loads(self.complete(json_schema={}, n_predict=64)["content"]),
                              dict)
        self.refuse("/completion", {"prompt": PROMPT, "grammar": "root ::= ("}, 400)

    def test_cache(self):
        prompt = "A prompt of its own, which is said twice and is long enough to be kept. " * 3
        self.complete(prompt=prompt)
        again = self.complete(prompt=prompt)
        self.assertGreater(again["tokens_cached"], 0)
        self.assertEqual(again["timings"]["cache_n"], again["tokens_cached"])
        cold = self.complete(prompt=prompt, cache_prompt=False)
        self.assertEqual((cold["tokens_cached"], cold["content"]), (0, again["content"]))

    def test_samplers(self):
        order = ["top_k", "temperature", "min_p"]
        settings = self.complete(samplers=order, top_k=3, temperature=0.5)["generation_settings"]
        self.assertEqual((settings["samplers"], settings["top_k"]), (order, 3))
        self.assertEqual(self.complete(samplers="kmt")["generation_settings"]["samplers"],
                         ["top_k", "min_p", "temperature"])
        # What llama.vim sends.
        self.complete(samplers=["top_k", "top_p", "infill"], n_indent=4, t_max_predict_ms=500,
                      t_max_prompt_ms=500, top_p=0.9, id_slot=0)
        self.complete(temperature=0.7, dynatemp_range=0.3, repeat_penalty=1.2, repeat_last_n=32,
                      typical_p=0.9, xtc_probability=0.5, dry_multiplier=0.8,
                      dry_sequence_breakers=["\n"], presence_penalty=0.5, mirostat=0)
        # What SillyTavern sends: names of stages that are off.
        self.complete(samplers=["penalties", "tfs_z", "top_k", "adaptive_p", "temperature"],
                      tfs_z=1, adaptive_target=-1.0, top_n_sigma=-1, min_keep=0)
        self.complete(temperature=0.7, mirostat=2, mirostat_tau=4.0)
        defaults = self.post("/completion", prompt=PROMPT, n_predict=1)["generation_settings"]
        self.assertEqual(
            [round(defaults[name], 3) for name in ("temperature", "top_k", "top_p", "min_p")],
            [0.8, 40, 0.95, 0.05])

    def test_slot_is_told_back(self):
        self.assertEqual(self.complete(id_slot=3)["id_slot"], 3)

    def test_refusals(self):
        for field, value, status, *words in (
                ("prompt", [], 400, "'prompt'"), ("prompt", "", 400), ("prompt", None, 400),
                ("prompt", 7, 400), ("prompt", [10**9], 400, "'prompt'"), ("prompt", [-1], 400),
                ("prompt", [1.5], 400), ("prompt", [[]], 400), ("prompt", {}, 400),
                ("prompt", [[[1]]], 400), ("prompt", {"prompt_string": {"a": 1}}, 400),
                ("prompt", {"prompt_string": "a", "multimodal_data": ["aaaa"]}, 501),
                ("prompt", {"prompt_string": "a", "multimodal_data": {}}, 400),
                ("prompt", [{"prompt_string": "a", "multimodal_data": False}], 400),
                ("prompt", "a b c d " * 400, 400, "exceeds the available context size"),
                ("n_predict", "many", 400, "'n_predict'"), ("n_predict", 1e300, 400),
                ("n_probs", 10**6, 400, "'n_probs'"), ("stop", [1], 400, "'stop'"),
                ("logit_bias", [[10**9, 1]], 400, "'logit_bias'"),
                ("logit_bias", [[1]], 400, "'logit_bias'"),
                ("logit_bias", [[1, True]], 400, "'logit_bias'"),
                ("logit_bias", 3, 400, "'logit_bias'"),
                ("samplers", ["no_such"], 400, "'samplers'"), ("samplers", {"a": 1}, 400),
                ("mirostat", 1, 501, "'mirostat'"), ("min_keep", 5, 501, "'min_keep'"),
                ("adaptive_target", 0.5, 501, "'adaptive_target'"), ("tfs_z", 0.5, 501, "'tfs_z'"),
                ("lora", [{"id": 0, "scale": 1}], 501, "'lora'"),
                ("n_cmpl", 1000, 400, "'n_cmpl'"), ("n_cmpl", 17, 400, "'n_cmpl'"),
                ("seed", "x", 400, "'seed'"), ("temperature", "hot", 400, "'temperature'"),
                ("response_fields", 5, 400), ("id_slot", "a", 400), ("stream", 1, 400)):
            with self.subTest(field=field, value=str(value)[:60]):
                body = {"prompt": PROMPT, "n_predict": 2, field: value}
                self.refuse("/completion", body, status, *words)
        self.refuse("/completion", {"prompt": PROMPT, "n_probs": 3, "post_sampling_probs": True},
                    501, "'post_sampling_probs'")
        self.refuse("/completion", {"n_predict": 2}, 400, "'prompt'")

    def test_broken_bodies(self):
        for path in ("/completion", "/tokenize", "/detokenize", "/infill", "/apply-template"):
            for body in (b"", b"{", b"[]", b"null", b'"text"', b"[" * 100000, b'{"prompt":"\xff"}',
                         b'{"a":' * 1000, b'{"prompt":1e999}', b'{"prompt":"\\ud800"}'):
                with self.subTest(path=path, body=body[:20]):
                    answer = self.server.ask(path, body)
                    self.assertIn(answer.status, (400, 501), answer.text)
                    self.assertIn("error", answer.json)
        self.assertEqual(self.server.ask("/health").status, 200)
        self.assertEqual(self.server.ask("/completion").status, 405)


class Tokens(Case):
    options = ("--chat-template", "chatml")

    def test_there_and_back(self):
        text = "What is the capital of France ?"
        ids = self.ids(text)
        self.assertGreater(len(ids), 5)
        self.assertEqual(self.post("/detokenize", tokens=ids)["content"].strip(), text)
        self.assertEqual(self.post("/tokenize")["tokens"], [])
        self.assertEqual(self.post("/detokenize")["content"], "")

    def test_pieces(self):
        text = "unicode 媽 and emoji 🤗"
        pieces = self.ids(text, with_pieces=True)
        self.assertEqual([piece["id"] for piece in pieces], self.ids(text))
        whole = b""
        for one in pieces:
            piece = one["piece"]
            whole += piece.encode() if isinstance(piece, str) else bytes(piece)
        self.assertEqual(whole.decode().strip(), text)

    def test_mixed_content(self):
        ids = self.ids("one")
        self.assertEqual(self.ids(["one", ids[0], "one"]), ids + [ids[0]] + ids)

    def special(self):
        """A special token that is spelt, and its id."""
        props = self.server.ask("/props").json
        text = props["eos_token"]
        ids = self.ids(text)
        if not text or len(ids) != 1:
            self.skipTest("the model has no special token that can be spelt")
        return text, ids[0]

    def test_special_tokens_are_text_where_asked(self):
        text, special = self.special()
        for wrapped in (text, "a" + text + "b", text * 3, text[:3] + text + text[-3:]):
            ids = self.ids(wrapped, parse_special=False)
            self.assertNotIn(special, ids)
            self.assertEqual(self.post("/detokenize", tokens=ids)["content"].strip(), wrapped)
            self.assertIn(special, self.ids(wrapped))

    def test_text_of_a_bias_is_no_special_token(self):
        text, special = self.special()
        answer = self.post("/completion", prompt=PROMPT, n_predict=1, logit_bias=[[text, 1]])
        biases = answer["generation_settings"]["logit_bias"]
        self.assertNotIn(special, [each["token"] for each in biases])

    def test_dialect_of_vllm(self):
        answer = self.post("/tokenize", prompt=PROMPT, return_token_strs=True, model="any")
        self.assertEqual(answer["tokens"], self.ids(PROMPT, add_special=True))
        self.assertEqual(answer["count"], len(answer["tokens"]))
        self.assertEqual(len(answer["token_strs"]), answer["count"])
        self.assertEqual(answer["max_model_len"], 512)
        answer = self.post("/tokenize", prompt=PROMPT, add_special_tokens=False)
        self.assertEqual(answer["tokens"], self.ids(PROMPT))
        self.assertIsNone(answer["token_strs"])
        self.assertEqual(self.post("/detokenize", tokens=answer["tokens"])["prompt"].strip(),
                         PROMPT)

    def test_refusals(self):
        for path, body in (("/tokenize", {"content": 5}), ("/tokenize", {"content": [1.5]}),
                           ("/tokenize", {"content": [-1]}), ("/tokenize", {"content": [10**12]}),
                           ("/tokenize", {"content": "a", "with_pieces": "yes"}),
                           ("/tokenize", {"prompt": []}), ("/tokenize", {"messages": "a"}),
                           ("/detokenize", {"tokens": "a"}), ("/detokenize", {"tokens": [-1]}),
                           ("/detokenize", {"tokens": [10**9]}),
                           ("/detokenize", {"tokens": [[1]]}), ("/apply-template", {}),
                           ("/apply-template", {"messages": []}),
                           ("/v1/chat/completions/input_tokens", {"messages": 3})):
            with self.subTest(path=path, body=body):
                self.refuse(path, body, 400)

    def conversation(self):
        if not self.server.ask("/props").json["chat_template"]:
            self.refuse("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}, 400,
                        "chat template")
            self.skipTest("the model has no chat template")
        return [{"role": "user", "content": "What is today?"}]

    def test_template(self):
        messages = self.conversation()
        prompt = self.post("/apply-template", messages=messages)["prompt"]
        self.assertIn("What is today?", prompt)
        bare = self.post("/apply-template", messages=messages, add_generation_prompt=False)
        self.assertTrue(prompt.startswith(bare["prompt"]))
        self.assertGreater(len(prompt), len(bare["prompt"]))

    def test_counts_of_conversations(self):
        messages = self.conversation()
        count = self.post("/v1/chat/completions/input_tokens", messages=messages)
        self.assertEqual(count["object"], "response.input_tokens")
        chat = self.post("/v1/chat/completions", messages=messages, max_tokens=1)
        self.assertEqual(count["input_tokens"], chat["usage"]["prompt_tokens"])
        counted = self.post("/tokenize", messages=messages)
        self.assertEqual(counted["count"], count["input_tokens"])


class Properties(Case):
    options = ("--slots", "--streams", "3", "--alias", "a-name")

    def test_props(self):
        props = self.server.ask("/props").json
        self.assertEqual(props["total_slots"], 3)
        self.assertEqual(props["default_generation_settings"]["n_ctx"], 512)
        self.assertEqual(props["default_generation_settings"]["params"]["top_k"], 40)
        self.assertEqual((props["model_alias"], props["model_path"]), ("a-name", "a-name"))
        self.assertEqual(props["modalities"]["vision"], False)
        for name in ("chat_template", "build_info", "bos_token", "eos_token"):
            self.assertIsInstance(props[name], str)
        self.refuse("/props", {}, 501)

    def test_slots(self):
        secret = "nobody else reads this"
        self.post("/completion", prompt=secret, n_predict=4)
        answer = self.server.ask("/slots")
        self.assertEqual(answer.status, 200)
        self.assertEqual([slot["id"] for slot in answer.json], [0, 1, 2])
        for slot in answer.json:
            self.assertEqual(slot["n_ctx"], 512)
            self.assertNotIn("params", slot)
        self.assertNotIn(secret, answer.text)
        self.assertEqual(self.server.ask("/slots?fail_on_no_slot=1").status, 200)
        self.refuse("/slots/0?action=save", {"filename": "../x"}, 501)


class Absent(Case):
    def test_slots(self):
        answer = self.server.ask("/slots")
        self.assertEqual(answer.status, 501)
        self.assertEqual(answer.json["error"]["type"], "not_supported_error")

    def test_infill(self):
        if len(self.ids("<|fim_prefix|>")) == 1:
            self.skipTest("the model has marks of infilling")
        self.refuse("/infill", {"input_prefix": "a", "input_suffix": "b"}, 501,
                    "Infill is not supported by this model: prefix token is missing. suffix token "
                    "is missing. middle token is missing. ")

    def test_embeddings(self):
        for path in ("/v1/embeddings", "/embeddings", "/embedding"):
            self.refuse(path, {"input": "a"}, 501, "--embeddings")


class Keys(Case):
    options = ("--api-key", "a-secret-of-the-test", "--slots", "--embeddings")

    def test_all_routes_are_guarded(self):
        for path in ("/completion", "/completions", "/tokenize", "/detokenize", "/infill",
                     "/apply-template", "/embeddings", "/embedding", "/v1/embeddings",
                     "/v1/chat/completions/input_tokens", "/props", "/slots"):
            body = None if path in ("/props", "/slots") else {"prompt": PROMPT}
            answer = self.server.ask(path, body)
            self.assertEqual(answer.status, 401, path)
            self.assertEqual(answer.json["error"]["type"], "authentication_error")
        key = {"Authorization": "Bearer a-secret-of-the-test"}
        self.assertEqual(self.server.ask("/props", headers=key).status, 200)
        answer = self.server.ask("/completions", {"prompt": PROMPT, "n_predict": 2}, key)
        self.assertIn("content", answer.json)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
