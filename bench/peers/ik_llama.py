# SPDX-License-Identifier: Apache-2.0
"""What ik_llama.cpp's llama-bench is asked, and what its JSON says.

It times prompts and single tokens as llama_speed does, but it takes token ids of its own (random, the
same in every run). It can decode behind a context (-gp) but not feed a prompt behind one, and says
nothing of the load, the first token or memory. Each (n_prompt, n_gen) is a test of its own for each
physical batch, with the nanoseconds of every repetition in samples_ns.
"""

import json
import pathlib
import re

# How it is run, by the name that stands in the tables: as it is, and with weights repacked at load.
REPACK = {"ik_llama.cpp": 0, "ik_llama.cpp -rtr 1": 1}

# The deviation of speeds that are all but the same: std::to_string of a negative number's root.
NO_NUMBER = re.compile(r'(": )-?(?:nan|inf)\b')


def find_program(folder):
    """The path of llama-bench in a build folder; a ValueError where it is not there."""
    program = pathlib.Path(folder) / "bin" / "llama-bench"
    if not program.is_file():
        raise ValueError(f"{program} is not there: give --ik-llama a build folder of ik_llama.cpp "
                         "(cmake --build FOLDER --target llama-bench makes the program)")
    return program


def command(program, model, threads, repack, arguments):
    if "," in str(model):
        raise ValueError(f"llama-bench takes a comma for the end of a path, and {model} has one")
    tests = ["-p", arguments.prompt, "-n", arguments.tokens, "-ub", arguments.ubatch]
    if arguments.depth > 0:
        # Physical batches only matter to a prompt, and that of a context is not timed.
        tests = ["-p", 0, "-n", 0, "-gp", f"{arguments.depth},{arguments.tokens}",
                 "-ub", arguments.ubatch.split(",")[0]]
    # A prompt goes in as one batch. Its own warm-up is of one token, so it is asked for one
    # repetition more, and the first, which touches memory, does not count.
    return [program, "-m", model, *tests, "-b", max(arguments.prompt, arguments.depth),
            "-t", threads, "-r", arguments.repeat + 1, "-fa", 1, "-fmoe", 1, "-rtr", repack,
            "-o", "json"]


def read_speeds(tests, prompt, tokens, arguments):
    """{physical batch: tokens a second of each repetition that counts} of one kind of test. Where
    tokens are decoded behind a prompt, only their time is in the samples."""
    found = {}
    for test in tests:
        if (test["n_prompt"], test["n_gen"]) == (prompt, tokens):
            samples = test["samples_ns"]
            if len(samples) != arguments.repeat + 1 or min(samples) <= 0:
                raise ValueError(f"expected {arguments.repeat + 1} times, found {samples}")
            found[str(test["n_ubatch"])] = [1e9 * (tokens or prompt) / time for time in samples[1:]]
    if not found:
        raise ValueError(f"it has no test of n_prompt {prompt} and n_gen {tokens}")
    return found


def read(text, arguments):
    """What llama_speed prints, from llama-bench's JSON; None for what it does not say."""
    try:
        tests = json.loads(NO_NUMBER.sub(r"\1null", text))
        if not isinstance(tests, list) or not tests:
            raise ValueError("it is no list of tests")
        for kind in ("cuda", "vulkan", "metal", "sycl"):
            if tests[0].get(kind):
                raise ValueError(f"it is built with {kind}: build it for the CPU alone")
        prefill = {} if arguments.depth > 0 else read_speeds(tests, arguments.prompt, 0, arguments)
        decode = read_speeds(tests, arguments.depth, arguments.tokens, arguments)
        first = tests[0]
        return {"prefill": prefill, "decode": decode[arguments.ubatch.split(",")[0]],
                "load_seconds": None, "first_token_seconds": None, "peak_rss": None,
                "system_info": f"build {first['build_commit']} ({first['build_number']}), keys "
                               f"{first['type_k']}, values {first['type_v']}, flash attention "
                               f"{'on' if first['flash_attn'] else 'off'}, {first['cpu_info']}"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"ik_llama.cpp's llama-bench gave no usable answer: {reason}") from error
