// SPDX-License-Identifier: Apache-2.0
// quantize_folder IN OUT SCHEME GROUP [keep-head]: what the Python oracle test runs.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "vitrine/compress.h"

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: quantize_folder IN OUT SCHEME GROUP [keep-head]\n");
    return 2;
  }
  vitrine::QuantizeOptions options;
  options.scheme = argv[3];
  options.group_size = std::atoi(argv[4]);
  options.quantize_head = argc < 6 || std::string_view(argv[5]) != "keep-head";
  options.tool_version = "test";
  options.instruction_set = "test";
  try {
    vitrine::quantize_checkpoint(argv[1], argv[2], options);
  } catch (const vitrine::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.is_user_error() ? 2 : 1;
  }
  return 0;
}
