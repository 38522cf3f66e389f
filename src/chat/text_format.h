// SPDX-License-Identifier: Apache-2.0
// Private to the room: str.format() and str.format_map().
#pragma once

#include "interpreter.h"

namespace vitrine::chat {

Value format_method(Interpreter& interpreter, const Text& self, CallArguments& arguments);
Value format_map_method(Interpreter& interpreter, const Text& self, CallArguments& arguments);

}  // namespace vitrine::chat
