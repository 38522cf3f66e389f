// SPDX-License-Identifier: Apache-2.0
// Models that reason and call no tools, or those of a form of their own.
#include "tagged_output.h"

namespace vitrine::chat {

namespace {

OutputFormat think_format() {
  return {.name = "think",
          .rank = 90,
          .signs = {"<think>"},
          .marks = {"<think>", "</think>"},
          .make = [](std::string_view prompt, const ToolTypes& tools) {
            TaggedSyntax syntax;
            syntax.reasoning = {{"<think>", "</think>"}};
            return make_tagged_reader(std::move(syntax), prompt, tools);
          }};
}

VITRINE_REGISTER_OUTPUT_FORMAT(think_format);

}  // namespace

}  // namespace vitrine::chat
