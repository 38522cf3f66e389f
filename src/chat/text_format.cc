// SPDX-License-Identifier: Apache-2.0
#include "text_format.h"

#include <algorithm>

#include "core/json_text.h"
#include "text.h"
#include "writer.h"

namespace vitrine::chat {

namespace {

/// Fields {}, {0} and {name} with !r, !s or !a; a safe format escapes what it is given.
class Format {
 public:
  Format(Runtime& runtime, const Text& format, const CallArguments& arguments)
      : runtime_(runtime), text_(format.bytes), escapes_(format.is_markup), arguments_(arguments) {}

  std::string run() {
    Writer out(runtime_);
    for (size_t at = 0; at < text_.size(); ++at) {
      const char c = text_[at];
      const bool is_brace = c == '{' || c == '}';
      if (!is_brace || (at + 1 < text_.size() && text_[at + 1] == c)) {
        out.add(text_.substr(at, 1));
        at += is_brace ? 1 : 0;
        continue;
      }
      if (c == '}') runtime_.fail("'format' finds a single '}'; expected '}}'");
      const size_t close = text_.find('}', at);
      if (close == std::string_view::npos) runtime_.fail("'format' finds a '{' without its '}'");
      out.add(shown(text_.substr(at + 1, close - at - 1)));
      at = close;
    }
    return out.take();
  }

 private:
  std::string shown(std::string_view field) {
    char conversion = '\0';
    if (field.size() >= 2 && field[field.size() - 2] == '!' &&
        std::string_view("rsa").find(field.back()) != std::string_view::npos) {
      conversion = field.back();
      field.remove_suffix(2);
    }
    const Value* value = find(field);
    if (value == nullptr) {
      runtime_.fail("'format' finds no value for " + quote_text("{" + std::string(field) + "}") +
                    "; expected {}, {0} or {name}, with !r, !s or !a, of a value that it gets");
    }
    // !s makes plain text of safe text first.
    if (escapes_ && conversion == '\0') return safe_text(runtime_, *value);
    std::string result = conversion == 'r' || conversion == 'a' ? to_repr(runtime_, *value)
                                                                : to_text(runtime_, *value);
    if (conversion == 'a') result = ascii_repr(result);
    return escapes_ ? escape_markup(result) : result;
  }

  const Value* find(std::string_view field) {
    const bool is_index =
        field.size() < 6 && std::ranges::all_of(field, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_index) {
      runtime_.spend(arguments_.named.size());
      for (const auto& [name, value] : arguments_.named) {
        if (name == field) return &value;
      }
      return nullptr;
    }
    const bool counts = field.empty();
    if (counts ? has_numbers_ : next_ > 0) {
      runtime_.fail("'format' finds both '{}' and '{0}'; expected one kind");
    }
    has_numbers_ |= !counts;
    const size_t index = counts ? next_++ : std::stoul(std::string(field));
    return index < arguments_.positional.size() ? &arguments_.positional[index] : nullptr;
  }

  Runtime& runtime_;
  std::string_view text_;
  bool escapes_;
  const CallArguments& arguments_;
  size_t next_ = 0;
  bool has_numbers_ = false;
};

}  // namespace

Value format_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  return make_text(runtime, Format(runtime, self, arguments).run());
}

Value format_map_method(Interpreter& interpreter, const Text& self, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"mapping"}, 1);
  CallArguments named;
  if (const Dict* dict = bound.value(0).as_dict()) {
    runtime.spend(128 * dict->items.size());
    for (const auto& [key, value] : dict->items) {
      if (key.as_text() != nullptr) named.named.emplace_back(key.as_text()->bytes, value);
    }
  }
  return make_text(runtime, Format(runtime, self, named).run());
}

}  // namespace vitrine::chat
