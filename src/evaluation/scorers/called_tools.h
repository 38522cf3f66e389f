// SPDX-License-Identifier: Apache-2.0
// Private to the library: the calls of an answer beside those that are right.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "evaluation/item.h"
#include "evaluation/scorers/schema_shares.h"

namespace vitrine::evaluation {

struct CalledTool {
  std::string name;
  Json arguments;       // an object
  bool is_read = true;  // the arguments are a JSON object
};

/// The calls of an answer: those in the model's own form, else those that its text writes as JSON.
struct CalledTools {
  std::vector<CalledTool> calls;
  bool has_form = true;  // none was read from text
};
CalledTools called_tools(const ScoredAnswer& answer, const std::string& text);

/// Shares of one call by what is right of it.
struct CallShares {
  bool is_name_right = false;
  Share arguments;  // required ones are there, and no others than may be
  Share types, values;
  bool is_right() const {
    return is_name_right && arguments.is_whole() && types.is_whole() && values.is_whole();
  }
  double value() const {
    return is_name_right ? (1 + arguments.value() + types.value() + values.value()) / 4 : 0;
  }
};

/// Compares a call with one that is right, in the form of BFCL's possible answers (Patil et al.,
/// ICML 2025): {"NAME": {"ARGUMENT": [values that are right, "" where it may be missing]}}.
/// `parameters`: the function's JSON Schema.
CallShares call_shares(const CalledTool& call, const Json& right, const Json& parameters);

/// Whether a value is among those that are right. Texts are equal but for case, blanks and the
/// characters , . / - _ * ^, as BFCL's checker takes them.
bool is_right_argument(const Json& value, const Json& rights);

/// The parameters of a function in OpenAI's list of tools; null where there is no such function.
const Json* find_parameters(const Json& tools, const std::string& name);

}  // namespace vitrine::evaluation
