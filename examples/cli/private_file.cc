// SPDX-License-Identifier: Apache-2.0
#include "private_file.h"

#include <sys/stat.h>

#include "vitrine/checkpoint.h"

namespace cli {

namespace {

/// What is made while this lives is its owner's alone.
class PrivateMask {
 public:
  PrivateMask() : before_(::umask(S_IRWXG | S_IRWXO)) {}
  ~PrivateMask() { ::umask(before_); }
  PrivateMask(const PrivateMask&) = delete;
  PrivateMask& operator=(const PrivateMask&) = delete;

 private:
  mode_t before_;
};

}  // namespace

void write_private_file(const std::string& path, std::string_view text) {
  const PrivateMask mask;
  vitrine::write_file_atomically(path, text);
}

}  // namespace cli
