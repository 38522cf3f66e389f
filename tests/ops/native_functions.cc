// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/native_functions.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace vitrine::testing_support {

namespace {

// "[a, b]" or "a, b" or "a", without a comment.
std::set<std::string> words_of(std::string text) {
  text = text.substr(0, text.find(" #"));
  std::set<std::string> words;
  std::string word;
  for (char c : text + ",") {
    if (c == ',' || c == ']') {
      if (!word.empty()) words.insert(word);
      word.clear();
    } else if (c != ' ' && c != '[') {
      word += c;
    }
  }
  return words;
}

}  // namespace

NativeFunctions NativeFunctions::read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + " can't be read; expected the torch wheel's file");
  NativeFunctions result;
  NativeFunction* function = nullptr;
  std::string field;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const size_t indent = line.find_first_not_of(' ');
    if (indent == line.npos || line[indent] == '#') continue;
    if (line.starts_with("- func: ")) {
      const std::string name = line.substr(8, line.find('(') - 8);
      function = &result.functions_[name];
      field.clear();
      continue;
    }
    const size_t colon = line.find(':');
    if (function == nullptr || (indent != 2 && field.empty())) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": not understood: " + line);
    }
    if (indent > 2) {
      if (field != "dispatch") continue;  // continuation of a field that is not read here
      for (const std::string& key : words_of(line.substr(indent, colon - indent))) {
        function->dispatch.insert(key);
      }
      continue;
    }
    field = line.substr(2, colon - 2);
    const std::string value = colon == line.npos ? "" : line.substr(colon + 1);
    if (field == "tags") function->tags = words_of(value);
    if (field == "structured_delegate") function->structured_delegate = *words_of(value).begin();
    if (field != "autogen") continue;
    // Generated variants copy what the op itself returns: composite.
    for (const std::string& name : words_of(value)) {
      result.functions_[name].dispatch.insert("CompositeExplicitAutograd");
    }
  }
  return result;
}

const NativeFunctions& NativeFunctions::of_torch() {
  static const NativeFunctions functions = [] {
    const char* moved = std::getenv("VITRINE_NATIVE_FUNCTIONS");
    return read(moved != nullptr ? moved : VITRINE_NATIVE_FUNCTIONS_FILE);
  }();
  return functions;
}

const NativeFunction* NativeFunctions::find(const std::string& name) const {
  auto found = functions_.find(name);
  return found == functions_.end() ? nullptr : &found->second;
}

bool NativeFunctions::is_tagged(const std::string& name, const std::string& tag) const {
  const NativeFunction* function = find(name);
  return function != nullptr && function->tags.contains(tag);
}

const NativeFunction* NativeFunctions::with_kernels(const std::string& name) const {
  const NativeFunction* function = find(name);
  if (function == nullptr || function->structured_delegate.empty()) return function;
  return find(function->structured_delegate);
}

bool NativeFunctions::has_mps_kernel(const std::string& name) const {
  const NativeFunction* function = with_kernels(name);
  return function != nullptr && function->dispatch.contains("MPS");
}

bool NativeFunctions::is_composite_everywhere(const std::string& name) const {
  const NativeFunction* function = with_kernels(name);
  if (function == nullptr || function->dispatch.contains("CPU")) return false;
  if (function->dispatch.empty()) return true;
  for (const std::string& key : function->dispatch) {
    if (key.starts_with("Composite")) return true;
  }
  return false;
}

}  // namespace vitrine::testing_support
