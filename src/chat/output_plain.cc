// SPDX-License-Identifier: Apache-2.0
// Models that mark nothing: all is content.
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

OutputFormat plain_format() {
  return {.name = "plain",
          .rank = 100,
          .signs = {},
          .marks = {},
          .make = [](std::string_view prompt, const ToolTypes& tools) {
            return make_tagged_reader({}, prompt, tools);
          }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(plain_format);

}  // namespace

}  // namespace vitrine::chat
