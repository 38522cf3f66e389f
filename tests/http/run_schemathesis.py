# SPDX-License-Identifier: Apache-2.0
"""Asks a server what its /openapi.json allows and what it does not, with PyPI's schemathesis:

    run_schemathesis.py SCHEMATHESIS TOOL MODEL [--seconds 300] [-- OPTIONS OF VITRINE SERVE]

Fails where the server fails, answers with a status or a body that is not described, lets in who has
no key, ends, or grows. What schemas cannot say (that a regular expression is one, that a field needs
another beside it) is refused with 400, so that is no failure of the server's."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

KEY = "key-of-schemathesis"
SETTINGS = """
[generation]
mode = "all"
[checks]
positive_data_acceptance.enabled = false
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]
"""


def main():
    parser = argparse.ArgumentParser()
    for name in ("schemathesis", "tool", "model"):
        parser.add_argument(name)
    parser.add_argument("--seconds", type=int, default=300, help="that fuzzing may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--include", default="", help="a regular expression of paths")
    own = sys.argv[1:]
    split = own.index("--") if "--" in own else len(own)
    arguments, options = parser.parse_args(own[:split]), own[split + 1:]
    os.environ["VITRINE_TOOL"], os.environ["VITRINE_MODEL"] = arguments.tool, arguments.model
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    from http_case import TEMPLATE, resident_kib
    from served import served

    with tempfile.TemporaryDirectory() as folder:
        settings = pathlib.Path(folder, "schemathesis.toml")
        settings.write_text(SETTINGS)
        template = pathlib.Path(folder, "template.jinja")
        template.write_text(TEMPLATE)
        given = ["--api-key", KEY, "--context", "512", "--max-answer-tokens", "8", "--metrics",
                 "--slots", "--embeddings", *options]
        if pathlib.Path(arguments.model).is_dir():
            given += ["--chat-template", str(template)]
        with served(arguments.model, *given) as server:
            before = resident_kib(server)
            command = [arguments.schemathesis, "--config-file", str(settings), "run",
                       server.url + "/openapi.json", "-H", f"Authorization: Bearer {KEY}",
                       "--max-time", str(arguments.seconds), "--seed", str(arguments.seed),
                       "--request-timeout", "60", "--continue-on-failure",
                       "--suppress-health-check", "all", "--warnings", "off"]
            if arguments.include:
                command += ["--include-path-regex", arguments.include]
            failed = subprocess.run(command, cwd=folder).returncode
            health = server.ask("/health").status
            print(f"/health is {health}; {before >> 10} MiB before, "
                  f"{resident_kib(server) >> 10} MiB behind")
        ended = server.process.returncode
        print(f"the server ended with {ended}")
        notes = [line for line in server.errors if "ERROR" in line or "runtime error" in line]
        print("".join(notes), end="")
    sys.exit(bool(failed or health != 200 or ended != 0 or notes))


if __name__ == "__main__":
    main()
