// SPDX-License-Identifier: Apache-2.0
// Chat templates by name, as llama.cpp has them: for models that bring none of their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cli {

/// The names, ascending.
std::vector<std::string> builtin_template_names();

/// The Jinja source of a built-in template; empty for another name. It renders what llama.cpp makes
/// of the same messages, behind the beginning token of the models that want one.
std::string builtin_template(std::string_view name);

}  // namespace cli
