// SPDX-License-Identifier: Apache-2.0
// Holds what the command line of `chat` says.
#pragma once

#include <string>
#include <vector>

#include "chat_prompt.h"
#include "constraint_options.h"
#include "length_options.h"
#include "log_options.h"
#include "lora_options.h"
#include "sampling_options.h"
#include "speculation_options.h"

namespace cli {

struct ChatArguments {
  std::string model;
  std::string load;  // a session file to go on with
  LengthOptions length;
  SamplingOptions sampling;
  ConstraintOptions constraint;
  SpeculationArguments speculation;
  LogOptions log;
  ChatPromptOptions chat_prompt;
  DeviceOptions device;
  bool has_json_lines = false;
  bool has_no_history = false;

  /// The files that are read or that the log goes to: nothing may be written in their place.
  std::vector<NamedPath> files() const {
    std::vector<NamedPath> files = constraint.files();
    files.insert(files.end(), {{"MODEL", model},
                               {"--chat-template", chat_prompt.template_file},
                               {"--system-file", chat_prompt.system_file},
                               {"--chat-variables", chat_prompt.variables}});
    for (const auto& [path, scale] : lora_parts(device.lora)) files.emplace_back("--lora", path);
    return files;
  }
};

}  // namespace cli
