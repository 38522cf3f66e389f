// SPDX-License-Identifier: Apache-2.0
// Links libtorch and nothing of ours: the floor that memory_test.py measures from.
#include <ATen/ATen.h>

int main() { return at::zeros({1}).numel() == 1 ? 0 : 1; }
