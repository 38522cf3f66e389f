// SPDX-License-Identifier: Apache-2.0
// Private to the room: the values of a template, with Python's meaning.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace vitrine::chat {

class Interpreter;
class Runtime;
struct Dict;
struct List;
struct Loop;
struct Macro;
struct Namespace;
struct Callable;
struct CallArguments;

struct None {};

/// What a name or an item that is not there gives: empty text, an error in most other uses.
struct Undefined {
  std::shared_ptr<const std::string> reason;  ///< for messages; may be null
};

struct Text {
  std::string bytes;       ///< valid UTF-8
  bool is_ascii = false;   ///< a byte is a code point
  bool is_markup = false;  ///< `safe`: `e` leaves it as it is
};

using TextRef = std::shared_ptr<const Text>;
using ListRef = std::shared_ptr<const List>;
using DictRef = std::shared_ptr<const Dict>;

/// Cheap to copy. Lists and dicts never change once they are made; a Namespace does.
class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, TextRef, ListRef, DictRef,
                            std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
                            std::shared_ptr<Loop>, std::shared_ptr<Macro>>;

  Value() = default;  ///< undefined
  template <typename T>
  explicit Value(T data) : data_(std::move(data)) {}
  static Value undefined(std::string reason);
  /// Not charged to a Runtime: constants of a template, names.
  static Value text(std::string bytes, bool is_markup = false);

  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  const Text* as_text() const;
  const List* as_list() const;
  const Dict* as_dict() const;
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  /// A whole number; Python's bool is one.
  bool as_integer(int64_t& out) const;
  /// A number as float64.
  bool as_number(double& out) const;
  bool is_number() const;
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_callable() const;
  /// Text that `safe` or `e` marked, Markup in Python.
  bool is_markup() const;
  const Data& data() const { return data_; }

 private:
  Data data_;
};

using Values = std::vector<Value>;

enum class ListKind : uint8_t {
  kList,
  kTuple,
  kRange,
  kView,      ///< dict.keys() and the like: has a length, no index
  kIterator,  ///< generators: no length, always true, empty once it was read
};

struct List {
  ListKind kind = ListKind::kList;
  Values items;
  int depth = 1;  ///< of lists and dicts in one another
  mutable bool was_read = false;
  std::string name = {};  ///< of a view or range, for repr()

  bool is_sequence() const { return kind < ListKind::kView; }
};

/// Keys in the order in which they came.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::unordered_map<std::string, size_t> index;  ///< by hash_key()
  int depth = 1;

  const Value* find(std::string_view text) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  Value* find(std::string_view name);
};

/// The variable `loop`.
struct Loop {
  ListRef items;
  size_t index = 0;
  int depth = 1;
  Values last_changed;
  bool has_changed_before = false;
  /// The statement of a recursive loop, and the variables around it.
  const struct Statement* statement = nullptr;
  std::shared_ptr<struct Scope> scope;
};

struct CallArguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
  std::string_view function;  ///< the name that it was called by, for messages
};

/// A function or bound method.
struct Callable {
  std::string name;
  int depth = 0;  ///< of the list or dict that it holds
  std::function<Value(Interpreter&, CallArguments&)> call;
};

/// "str", "list", "NoneType", …
std::string type_name(const Value& value);
bool is_true(const Value& value);
/// A key that is equal for equal values; refuses what Python can't hash.
std::string hash_key(Runtime& runtime, const Value& value);
const Value* find_key(Runtime& runtime, const Dict& dict, const Value& key);
bool are_equal(Runtime& runtime, const Value& a, const Value& b);
/// Below 0, 0, above 0; refuses types that have no order. NaN is neither: `is_unordered`.
int compare(Runtime& runtime, const Value& a, const Value& b, const char* operation,
            bool* is_unordered = nullptr);
bool contains(Runtime& runtime, const Value& container, const Value& element);

Value make_text(Runtime& runtime, std::string bytes, bool is_markup = false);
Value make_list(Runtime& runtime, Values items, ListKind kind = ListKind::kList,
                std::string name = {});
Value make_dict(Runtime& runtime, std::vector<std::pair<Value, Value>> items);
/// What a `for` sees. Refuses what Python can't iterate over.
ListRef iterate(Runtime& runtime, const Value& value);

/// str() and repr().
std::string to_text(Runtime& runtime, const Value& value);
std::string to_repr(Runtime& runtime, const Value& value);
std::string float_text(double number);
/// json.dumps().
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  bool has_indent = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
};
std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style);
/// str(), escaped where it is not safe: what joins safe text.
std::string safe_text(Runtime& runtime, const Value& value);
/// ascii(), of what repr() gave.
std::string ascii_repr(std::string_view repr);
/// `format % arguments`: a safe format escapes what it is given.
Value format_percent(Runtime& runtime, const Text& format, const Value& arguments);

}  // namespace vitrine::chat
