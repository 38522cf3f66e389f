// SPDX-License-Identifier: Apache-2.0
// A file that appears whole under its name or not at all.
#pragma once

#include <string>
#include <string_view>

namespace vitrine::audit {

/// Returns the file that a path leads to, its links followed, whether it is there or not. A path
/// that is no link stays as it is.
std::string behind_links(const std::string& path);

/// Throws kIo: "audit log '<path>': <what>".
[[noreturn]] void throw_log_io(const std::string& path, const std::string& what);

/// Writes to a temporary file in the target's folder. Functions that fail throw kIo with the
/// target's path, after removing the temporary. Not thread-safe.
class LogFile {
 public:
  /// Opens the temporary. Throws kInvalidArgument where `path` is there already and may not be
  /// replaced (also where it comes to be there before publish()), kIo where `path` is a folder, a
  /// device or a file that may not be written, or its folder cannot take a file. A symbolic link
  /// keeps pointing at the log.
  explicit LogFile(const std::string& path, bool overwrite = true);
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  /// Calls discard().
  ~LogFile();

  void write(std::string_view text);
  /// Brings everything to the disk and closes the file: nothing can be written afterwards.
  void sync_and_close();
  /// Gives the temporary the target's name, after sync_and_close(), or before append() where the
  /// file grows under its name.
  void publish();
  /// Writes all of `bytes` at the end, or nothing: then it returns false, and `problem` is a line
  /// that says why.
  bool append(std::string_view bytes, std::string& problem);
  /// Brings what was appended to the disk (fsync). Returns false as append() does.
  bool sync(std::string& problem);
  /// Returns the folder of the target.
  std::string folder() const;
  /// Removes the temporary, if there is one.
  void discard() noexcept;

 private:
  [[noreturn]] void fail(const char* action, int error_number);
  [[noreturn]] void refuse_existing();

  std::string path_;            // as the user wrote it
  std::string target_;          // links resolved
  std::string temporary_path_;  // empty: there is none
  int descriptor_ = -1;
  const bool overwrite_;
};

}  // namespace vitrine::audit
