// SPDX-License-Identifier: Apache-2.0
// Private to the room: how far a quantization is, and how long it will take at this pace.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/compress.h"

namespace vitrine::compress {

/// Estimates the time that is left of parts with known shares of the work, by those that are done.
class Pace {
 public:
  /// `seconds` is the clock; it may be replaced for a test.
  explicit Pace(std::vector<double> work, std::function<double()> seconds = {});

  void begin(size_t part);
  /// `counts`: whether the part was worked on, so that its time tells of others.
  void end(bool counts);
  /// Returns the time that is left; negative before a part that counts has ended.
  double seconds_left() const;

 private:
  std::vector<double> left_;  // work of a part and all behind it; 0 behind the last
  std::function<double()> seconds_;
  size_t part_ = 0;
  bool is_begun_ = false;
  double began_ = 0, time_ = 0, done_ = 0;
};

/// Tells the host of a quantization how far it is. Not thread-safe.
class ProgressTeller {
 public:
  explicit ProgressTeller(const QuantizeOptions& options) : options_(options) {}

  /// Begins what the host sees as one count: parts and their shares of the work.
  void begin_stage(std::string_view stage, std::vector<double> work);
  void begin(size_t part, std::string_view tensor);
  void end(bool counts) { pace_.end(counts); }
  /// Tells where it is. Throws what the host throws.
  void tell(std::string_view tensor);
  void tell() { tell(tensor_); }
  /// Says one line about kept layers, once.
  void note(std::string_view line);

 private:
  void call(std::string_view note);

  const QuantizeOptions& options_;
  Pace pace_{{}};
  std::string stage_, tensor_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace vitrine::compress
