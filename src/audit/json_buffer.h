// SPDX-License-Identifier: Apache-2.0
// JSON text, appended by hand: a log is written while a model generates on the same cores.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace vitrine::audit {

/// A growing buffer with functions for JSON's scalars. Not thread-safe.
class JsonBuffer {
 public:
  explicit JsonBuffer(size_t capacity = 1 << 12) : data_(new char[capacity]), capacity_(capacity) {}

  std::string_view view() const { return {data_.get(), size_}; }
  size_t size() const { return size_; }
  void clear() { size_ = 0; }

  void raw(std::string_view text) {
    char* to = room(text.size());
    std::memcpy(to, text.data(), text.size());
    size_ += text.size();
  }
  void raw(char character) {
    *room(1) = character;
    ++size_;
  }
  void integer(int64_t value) { number(value); }
  void integer(uint64_t value) { number(value); }
  void integer(int32_t value) { number(value); }

  /// Appends the shortest digits that give the same float back, always with a point or an exponent,
  /// so that readers keep it a float (and -0.0 its sign); null for NaN and the infinities.
  void real(float value);
  void real(double value);
  /// Appends a quoted string; bytes that are not UTF-8 become U+FFFD as in Python's
  /// errors="replace".
  void string(std::string_view text);
  /// Appends an option's value: a number where the text is a finite decimal number, else a string.
  void number_or_string(std::string_view text);

 private:
  template <typename T>
  void number(T value) {
    char* to = room(24);
    size_ = static_cast<size_t>(std::to_chars(to, to + 24, value).ptr - data_.get());
  }
  char* room(size_t bytes) {
    if (capacity_ - size_ < bytes) [[unlikely]]
      grow(bytes);
    return data_.get() + size_;
  }
  void grow(size_t bytes);

  std::unique_ptr<char[]> data_;
  size_t capacity_ = 0;
  size_t size_ = 0;
};

}  // namespace vitrine::audit
