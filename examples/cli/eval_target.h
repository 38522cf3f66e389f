// SPDX-License-Identifier: Apache-2.0
// Who answers a suite: a model that is loaded here, or a server elsewhere.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common.h"
#include "vitrine/evaluation.h"

namespace cli {

/// What chooses it on the command line.
struct EvalTargetOptions {
  std::string model;  // a path, or http://HOST:PORT/v1
  int parallel = 8, context = 0;
  std::string drafter, chat_template, audit_folder, seal;
  std::string api_key, api_model, api_form = "auto";  // of a server elsewhere
  int api_timeout = 600, api_retries = 6;             // likewise
  std::vector<std::string> encrypt_for;
  DeviceOptions device;

  void add_to(CLI::App& command);
  bool is_remote() const { return model.starts_with("http://") || model.starts_with("https://"); }
};

/// Opens it. `longest`: positions that the suite's items may need, where no context is given.
std::unique_ptr<vitrine::EvaluationTarget> open_eval_target(const EvalTargetOptions& options);

}  // namespace cli
