# SPDX-License-Identifier: Apache-2.0
"""What cuda_kernels_bench and cuda_products_bench print: a kernel a line."""

import re

LINE = re.compile(r"(?P<name>.{1,60}?) +(?P<tokens>\d+) +(?P<us>[\d.]+) us +(?P<bytes>\d+) bytes"
                  r" +(?P<rate>[\d.]+) GB/s")


def read_lines(output):
    found = []
    for line in output.splitlines():
        match = LINE.fullmatch(line.strip())
        if match:
            found.append({"name": match["name"].strip(), "tokens": int(match["tokens"]),
                          "microseconds": float(match["us"]), "bytes": int(match["bytes"]),
                          "gb_per_second": float(match["rate"])})
    return found
