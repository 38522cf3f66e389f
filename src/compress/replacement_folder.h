// SPDX-License-Identifier: Apache-2.0
// Private to the room: a folder that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace vitrine::compress {

/// Returns the path without a slash at its end.
std::filesystem::path target_of(const std::string& out);
/// Returns a path beside the target whose name begins with `.NAME.tmp-`.
std::filesystem::path temporary_beside(const std::filesystem::path& target,
                                       const std::string& suffix);
/// Throws kIo with what could not be done.
[[noreturn]] void fail_folder(const std::filesystem::path& folder, const std::string& what,
                              const std::error_code& error);
/// Throws kInvalidArgument where something stands at the target that is no empty folder.
void refuse_occupied(const std::filesystem::path& target);

/// A temporary folder that takes the place of `out` on commit(), and vanishes without it.
class ReplacementFolder {
 public:
  /// `place`: where it is made, which must be free; empty: beside `out`, under a random name.
  /// Throws kInvalidArgument where `out` is occupied, kIo.
  explicit ReplacementFolder(const std::string& out, const std::filesystem::path& place = {});
  ReplacementFolder(const ReplacementFolder&) = delete;
  ReplacementFolder& operator=(const ReplacementFolder&) = delete;
  ~ReplacementFolder();

  std::string path() const { return temporary_.string(); }
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
};

}  // namespace vitrine::compress
