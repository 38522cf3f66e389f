// SPDX-License-Identifier: Apache-2.0
// Private to the library: the file of an evaluation that is being made.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "evaluation/record.h"

namespace vitrine::evaluation {

/// Appends a line an item. What was there already of the same run stays; a line that was cut off
/// goes.
class ResultFile {
 public:
  /// Throws kInvalidArgument where the file holds something else or another run, and where another
  /// one is being written into it; kIo. `overwrite`: what is there goes.
  ResultFile(const std::string& path, const RunHead& head, bool overwrite);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  bool is_complete() const { return is_complete_; }
  bool has(const std::string& task, const std::string& id) const {
    return done_.contains({task, id});
  }
  size_t num_items() const { return done_.size(); }
  /// Seconds of earlier sittings.
  double seconds() const { return seconds_; }

  /// Throws kIo; what the file has stays.
  void add(const EvaluatedItem& item, double seconds);
  /// Says that every item is there, and syncs.
  void finish(double seconds);

 private:
  /// Puts a new file in the place, and takes it.
  void begin(const RunHead& head);
  /// Reads what is there. Returns how many bytes of it stay.
  uint64_t take_up(const std::string& text, const RunHead& head);
  void write(const std::string& line);

  const std::string path_;
  int file_ = -1;
  bool is_complete_ = false;
  double seconds_ = 0;
  std::set<std::pair<std::string, std::string>> done_;
};

/// Calls `on_line` with each whole line of a file's text and its number; a last line without its
/// end is left out. Returns the bytes of the whole lines.
uint64_t read_lines(const std::string& text,
                    const std::function<void(std::string_view line, size_t number)>& on_line);
/// Parses a line, which holds an object. Throws kBadFile.
Json parse_line(std::string_view line, const std::string& place);
/// Bounds a file of results, or of lm-eval's samples, which is read whole.
inline constexpr uint64_t kMostResultBytes = uint64_t{4} << 30;

}  // namespace vitrine::evaluation
