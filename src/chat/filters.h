// SPDX-License-Identifier: Apache-2.0
// Private to the room: the filters, by name.
#pragma once

#include <span>
#include <string_view>

#include "interpreter.h"

namespace vitrine::chat {

using Filter = Value (*)(Interpreter&, const Value& input, CallArguments& arguments);

struct FilterEntry {
  std::string_view name;
  Filter filter;
};

std::span<const FilterEntry> value_filters();
std::span<const FilterEntry> number_filters();
std::span<const FilterEntry> sequence_filters();
bool is_filter(std::string_view name);
/// Throws with the reason where `input` is undefined.
void refuse_undefined(Interpreter& interpreter, const Value& input);

}  // namespace vitrine::chat
