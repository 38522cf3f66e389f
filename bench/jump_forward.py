# SPDX-License-Identifier: Apache-2.0
"""Jump-forward on and off by turns, on a schema with long keys.

    bench/jump_forward.py VITRINE MODEL [ROUNDS] [KEYS]

Prints the median time of an answer (prompt and all), and characters a second, since the same text
has not the same tokens with and without.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

PROGRAM, MODEL = sys.argv[1:3]
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 15
KEYS = int(sys.argv[4]) if len(sys.argv) > 4 else 6
NAMES = ["customer_identification_number", "shipping_address_country_code",
         "preferred_contact_language", "number_of_previous_purchases",
         "date_of_last_successful_payment", "requires_additional_verification",
         "recommended_by_another_customer", "internal_processing_priority"]


def run(schema, jump, seed):
    done = subprocess.run(
        [PROGRAM, "generate", MODEL, "-p", "The customer's record:", "-n", "400", "--json",
         "--audit-mode", "none", "--temperature", "1", "-s", str(seed), "--json-schema", schema,
         "--jump-forward", jump], check=True, capture_output=True)
    answer = json.loads(done.stdout)
    seconds = answer["timings"]["prefill_seconds"] + answer["timings"]["decode_seconds"]
    return answer, seconds


def main():
    names = NAMES[:KEYS]
    schema = {"type": "object", "required": names, "additionalProperties": False,
              "properties": {name: {"type": "integer", "minimum": 0, "maximum": 999}
                             for name in names}}
    seconds = {"on": [], "off": []}
    speed = {"on": [], "off": []}
    tokens = {"on": 0, "off": 0}
    jumped = 0
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "schema.json")
        pathlib.Path(path).write_text(json.dumps(schema))
        for seed in range(ROUNDS):
            for jump in ("on", "off") if seed % 2 else ("off", "on"):
                answer, taken = run(path, jump, seed)
                assert set(json.loads(answer["text"])) == set(names), answer["text"]
                seconds[jump].append(taken)
                speed[jump].append(len(answer["text"]) / taken)
                tokens[jump] += len(answer["tokens"])
                jumped += answer["constraint"]["jumped"]
    for jump in ("off", "on"):
        print(f"{jump}: {1000 * statistics.median(seconds[jump]):.1f} ms an answer, "
              f"{statistics.median(speed[jump]):.0f} characters/s, "
              f"{tokens[jump] / ROUNDS:.0f} tokens an answer")
    print(f"{jumped / max(1, tokens['on']):.0%} of the tokens jumped over; "
          f"{statistics.median(seconds['off']) / statistics.median(seconds['on']):.2f} times as fast")


if __name__ == "__main__":
    main()
