// SPDX-License-Identifier: Apache-2.0
// What the tests of vitrine::Model share: the three kinds of files.
#pragma once

#include <filesystem>

#include "tests/engine/engine_fixture.h"
#include "vitrine/model.h"

namespace vitrine::testing {

inline const std::string& shipped_federation() {
  static const std::string path = shipped_model() + "/../fractalmoe-30m-adapters/federation.json";
  return path;
}

inline std::string gguf_file() { return testing_support::test_data("gguf/dense.gguf"); }

/// The shipped model under links, so that files can be taken away and put beside it.
class LinkedModel {
 public:
  explicit LinkedModel(std::initializer_list<std::string_view> left_out = {}) {
    for (const char* name :
         {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}) {
      if (std::ranges::find(left_out, name) != left_out.end()) continue;
      std::filesystem::create_symlink(std::filesystem::canonical(shipped_model()) / name,
                                      folder_ / name);
    }
  }
  std::string path() const { return folder_.path(); }
  void write(const std::string& name, const std::string& bytes) {
    write_bytes(folder_ / name, bytes);
  }

 private:
  TemporaryFolder folder_;
};

inline ModelOptions small_options() {
  ModelOptions options;
  options.engine.threads = 2;
  options.engine.max_context = 64;
  options.engine.audit_mode = AuditMode::kNone;
  return options;
}

}  // namespace vitrine::testing
