// SPDX-License-Identifier: Apache-2.0
// Global functions; methods of lists, dicts and loops.
#include <algorithm>
#include <array>
#include <ctime>

#include "interpreter.h"
#include "vitrine/core.h"

namespace vitrine::chat {

namespace {

constexpr int64_t kMaxRange = 100000;  // as Jinja's sandbox
constexpr size_t kMaxTimeFormat = 1000;

Value make_callable(std::string name, std::function<Value(Interpreter&, CallArguments&)> function,
                    int depth = 0) {
  auto callable = std::make_shared<Callable>();
  callable->depth = depth;
  callable->name = std::move(name);
  callable->call = std::move(function);
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

Value range_function(Interpreter& interpreter, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"start", "stop", "step"}, 1);
  const bool has_stop = bound.get(1) != nullptr;
  const int64_t start = has_stop ? bound.integer(0, 0) : 0;
  const int64_t stop = has_stop ? bound.integer(1, 0) : bound.integer(0, 0);
  const int64_t step = bound.integer(2, 1);
  if (step == 0) runtime.fail("'range' gets 0 as 'step'; expected another number");
  Values items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      runtime.fail("'range' gives more than " + std::to_string(kMaxRange) +
                   " numbers; expected fewer");
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  std::string name = "range(" + std::to_string(start) + ", " + std::to_string(stop);
  if (step != 1) name += ", " + std::to_string(step);
  return make_list(runtime, std::move(items), ListKind::kRange, name + ")");
}

Value dict_function(Interpreter& interpreter, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1) runtime.fail("'dict' gets more than one dict");
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (given.is_undefined()) runtime.fail("'dict' gets what is undefined; expected a dict");
    if (const Dict* dict = given.as_dict()) {
      items = dict->items;
    } else {
      const ListRef all = iterate(runtime, given);
      for (const Value& pair : all->items) {
        const ListRef both = iterate(runtime, pair);
        if (both->items.size() != 2) runtime.fail("'dict' gets a list without pairs");
        items.emplace_back(both->items[0], both->items[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.named) items.emplace_back(Value::text(name), value);
  return make_dict(runtime, std::move(items));
}

Value raise_function(Interpreter& interpreter, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"message"}, 1);
  std::string message =
      runtime.name() + ": line " + std::to_string(runtime.line) +
      ": the template refuses these messages: " + to_text(runtime, bound.value(0));
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  throw Error(ErrorKind::kInvalidArgument, message);
}

/// Without %z and %Z, of which Python's time without a zone makes nothing.
std::string without_zones(const std::string& format) {
  std::string kept;
  for (size_t i = 0; i < format.size(); ++i) {
    const bool is_code = format[i] == '%' && i + 1 < format.size();
    if (is_code && (format[i + 1] == 'z' || format[i + 1] == 'Z')) {
      ++i;
      continue;
    }
    kept += format[i];
    if (is_code) kept += format[++i];
  }
  return kept;
}

Value strftime_function(Interpreter& interpreter, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"format"}, 1);
  const std::string format = without_zones(bound.text(0, ""));
  if (format.size() > kMaxTimeFormat || format.find('\0') != std::string::npos) {
    runtime.fail("'strftime_now' gets a format that is too long; expected one as '%d %b %Y'");
  }
  const auto seconds = static_cast<std::time_t>(interpreter.now());
  std::tm time = {};
  localtime_r(&seconds, &time);
  std::array<char, 64 * kMaxTimeFormat> buffer;
  const size_t length = std::strftime(buffer.data(), buffer.size(), format.c_str(), &time);
  return make_text(runtime, std::string(buffer.data(), length));
}

Value namespace_function(Interpreter& interpreter, CallArguments& arguments) {
  return interpreter.make_namespace(arguments);
}

/// What changes a list or dict in place: Jinja's sandbox refuses it.
bool changes_in_place(std::string_view name) {
  constexpr std::string_view kNames[] = {"append",  "extend",     "insert", "pop",
                                         "popitem", "remove",     "sort",   "clear",
                                         "update",  "setdefault", "reverse"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

Value dict_view(Runtime& runtime, const Dict& dict, std::string_view name) {
  Values items;
  for (const auto& [key, value] : dict.items) {
    if (name == "items") {
      items.push_back(make_list(runtime, {key, value}, ListKind::kTuple));
    } else {
      items.push_back(name == "keys" ? key : value);
    }
  }
  return make_list(runtime, std::move(items), ListKind::kView, "dict_" + std::string(name));
}

/// list.copy and dict.copy: values do not change, so the copy is the same one.
template <typename Ref>
Value copy_method(const Ref& self) {
  return make_callable(
      "copy",
      [self](Interpreter& interpreter, CallArguments& arguments) {
        const BoundArguments bound(interpreter.runtime(), arguments, {});
        return Value(self);
      },
      self->depth);
}

Value fromkeys_function(Interpreter& interpreter, CallArguments& arguments) {
  Runtime& runtime = interpreter.runtime();
  const BoundArguments bound(runtime, arguments, {"iterable", "value"}, 1);
  const ListRef keys = iterate(runtime, bound.value(0));
  std::vector<std::pair<Value, Value>> items;
  for (const Value& key : keys->items) {
    items.emplace_back(key, bound.get(1) != nullptr ? bound.value(1) : Value(None()));
  }
  return make_dict(runtime, std::move(items));
}

std::optional<Value> find_dict_method(const Value& object, const std::string& name) {
  const DictRef self = *object.get_if<DictRef>();
  if (name == "items" || name == "keys" || name == "values") {
    return make_callable(
        name,
        [self, name](Interpreter& interpreter, CallArguments& arguments) {
          const BoundArguments bound(interpreter.runtime(), arguments, {});
          return dict_view(interpreter.runtime(), *self, name);
        },
        self->depth);
  }
  if (name == "get") {
    return make_callable(
        name,
        [self](Interpreter& interpreter, CallArguments& arguments) {
          const BoundArguments bound(interpreter.runtime(), arguments, {"key", "default"}, 1);
          const Value* found = find_key(interpreter.runtime(), *self, bound.value(0));
          if (found != nullptr) return *found;
          return bound.get(1) != nullptr ? bound.value(1) : Value(None());
        },
        self->depth);
  }
  if (name == "copy") return copy_method(self);
  if (name == "fromkeys") return make_callable(name, fromkeys_function);
  return std::nullopt;
}

std::optional<Value> find_list_method(const Value& object, const std::string& name) {
  const ListRef self = *object.get_if<ListRef>();
  if (name == "count" || name == "index") {
    return make_callable(
        name,
        [self, name](Interpreter& interpreter, CallArguments& arguments) {
          Runtime& runtime = interpreter.runtime();
          const BoundArguments bound(runtime, arguments, {"value"}, 1);
          int64_t count = 0;
          for (size_t i = 0; i < self->items.size(); ++i) {
            if (!are_equal(runtime, self->items[i], bound.value(0))) continue;
            if (name == "index") return Value(static_cast<int64_t>(i));
            ++count;
          }
          if (name == "index")
            runtime.fail("'index' does not find its value; expected it to be there");
          return Value(count);
        },
        self->depth);
  }
  if (name == "copy" && self->kind == ListKind::kList) {
    return copy_method(self);
  }
  return std::nullopt;
}

Value cycle(Interpreter& interpreter, const Loop& loop, CallArguments& arguments) {
  if (arguments.positional.empty()) {
    interpreter.runtime().fail("'loop.cycle' gets nothing; expected values");
  }
  return arguments.positional[loop.index % arguments.positional.size()];
}

Value changed(Interpreter& interpreter, Loop& loop, CallArguments& arguments) {
  bool is_same = loop.has_changed_before && loop.last_changed.size() == arguments.positional.size();
  for (size_t i = 0; is_same && i < arguments.positional.size(); ++i) {
    is_same = are_equal(interpreter.runtime(), loop.last_changed[i], arguments.positional[i]);
  }
  if (is_same) return Value(false);
  loop.has_changed_before = true;
  loop.last_changed = arguments.positional;
  return Value(true);
}

std::optional<Value> find_loop_attribute(const Value& object, const std::string& name) {
  const std::shared_ptr<Loop> loop = *object.get_if<std::shared_ptr<Loop>>();
  const auto length = static_cast<int64_t>(loop->items->items.size());
  const auto index = static_cast<int64_t>(loop->index);
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "length") return Value(length);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "depth") return Value(static_cast<int64_t>(loop->depth));
  if (name == "depth0") return Value(static_cast<int64_t>(loop->depth - 1));
  if (name == "previtem") {
    return index > 0 ? loop->items->items[loop->index - 1]
                     : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? loop->items->items[loop->index + 1]
                              : Value::undefined("there is no next item");
  }
  // Both hold the loop weakly: it may hold them, as its last changed value.
  const std::weak_ptr<Loop> weak = loop;
  if (name == "cycle" || name == "changed") {
    return make_callable(name, [weak, name](Interpreter& interpreter, CallArguments& arguments) {
      const std::shared_ptr<Loop> held = weak.lock();
      if (held == nullptr)
        interpreter.runtime().fail("'loop." + name + "' is called after its loop");
      return name == "cycle" ? cycle(interpreter, *held, arguments)
                             : changed(interpreter, *held, arguments);
    });
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::pair<std::string, Value>> global_functions() {
  std::vector<std::pair<std::string, Value>> functions;
  for (const auto& [name, function] :
       {std::pair{"range", &range_function}, std::pair{"dict", &dict_function},
        std::pair{"namespace", &namespace_function}, std::pair{"raise_exception", &raise_function},
        std::pair{"strftime_now", &strftime_function}}) {
    functions.emplace_back(name, make_callable(name, function));
  }
  return functions;
}

std::optional<Value> find_method(Interpreter& interpreter, const Value& object,
                                 const std::string& name) {
  interpreter.runtime().spend(32);
  if (object.as_text() != nullptr) return find_text_method(object, name);
  if (object.get_if<std::shared_ptr<Loop>>() != nullptr) return find_loop_attribute(object, name);
  if (const auto* function = object.get_if<std::shared_ptr<const Callable>>()) {
    const bool is_dict = (*function)->name == "dict" && name == "fromkeys";
    return is_dict ? std::optional(make_callable(name, fromkeys_function)) : std::nullopt;
  }
  const Dict* dict = object.as_dict();
  const List* list = object.as_list();
  if (dict == nullptr && list == nullptr) return std::nullopt;
  if ((dict != nullptr || list->kind == ListKind::kList) && changes_in_place(name) &&
      !(dict != nullptr && (name == "append" || name == "extend" || name == "insert" ||
                            name == "remove" || name == "sort" || name == "reverse"))) {
    return Value::undefined("'" + name + "' would change a " + type_name(object) +
                            ", which a template may not");
  }
  return dict != nullptr ? find_dict_method(object, name) : find_list_method(object, name);
}

}  // namespace vitrine::chat
