// SPDX-License-Identifier: Apache-2.0
// Every key that the newer families read, with each kind of lie: a value of another type, none, one
// that is negative, huge or no number, an array of another length.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint/model_config.h"
#include "folders.h"
#include "gguf_families.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

/// A lie about a key, and whether it is one whatever the key holds.
struct Lie {
  std::string what;
  std::string entry;  ///< empty: the key is missing
  bool is_certain = false;
};

std::vector<Lie> lies_about(const std::string& name, const Key& key) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  const bool is_list = key.kind == Kind::kLayers || key.kind == Kind::kLayerFlags;
  const bool is_number = key.kind == Kind::kInteger || key.kind == Kind::kFloat || is_list;
  std::vector<Lie> lies = {
      {"missing", "", key.is_required},
      {"a text", gguf_text(name, "x"), true},
      {"texts", gguf_strings(name, {"a", "b", "c", "d"}), true},
      {"an empty list", gguf_array<uint32_t>(name, 4, {}), true},
      {"a list of another length", gguf_array<uint32_t>(name, 4, {2, 2, 2}), true},
      {"a list of floats", gguf_array<float>(name, 6, {1, 1, 1, 1}), true},
      {"a list with huge numbers", gguf_array<uint64_t>(name, 10, {1, 2, UINT64_MAX, 1}), true},
      {"a negative number", gguf_entry(name, 5, le<int32_t>(-1)), true},
      {"a huge number", gguf_entry(name, 10, le<uint64_t>(UINT64_MAX)), true},
      {"a large number", gguf_u32(name, UINT32_MAX), key.kind != Kind::kInteger},
      {"no number", gguf_f32(name, nan), true},
      {"infinity", gguf_f32(name, infinity), true},
      {"minus infinity", gguf_f32(name, -infinity), true},
      {"a large float", gguf_entry(name, 12, le<double>(1e300)), true},
      {"zero", gguf_u32(name, 0), key.kind != Kind::kInteger && !is_list},
      {"three", gguf_u32(name, 3), key.kind != Kind::kInteger && !is_list},
      {"a flag", gguf_bool(name, true), is_number},
  };
  return lies;
}

class GgufKeysTest : public ::testing::Test {
 protected:
  void open(const Family& family, const std::string& changed, const std::string& entry) {
    write_bytes(folder_ / "model.gguf", family_file(family, changed, entry));
    parse_model_config(Checkpoint::open(folder_ / "model.gguf"));
  }
  TemporaryFolder folder_;
};

TEST_F(GgufKeysTest, TheFilesWithoutALieOpen) {
  for (const Family& family : families()) {
    EXPECT_NO_THROW(open(family, "", "")) << family.name;
  }
}

TEST_F(GgufKeysTest, EachLieIsOneLineWithTheFileTheKeyAndWhatWasExpected) {
  int refused = 0;
  for (const Family& family : families()) {
    for (const Key& key : family.keys) {
      const std::string name = family.name + "." + key.name;
      for (const Lie& lie : lies_about(name, key)) {
        SCOPED_TRACE(name + ": " + lie.what);
        const Error error = error_of([&] { open(family, key.name, lie.entry); });
        if (error.kind() == ErrorKind::kInternal && std::string_view(error.what()).empty()) {
          EXPECT_FALSE(lie.is_certain) << "it opens";
          continue;
        }
        ++refused;
        EXPECT_TRUE(error.kind() == ErrorKind::kBadFile || error.kind() == ErrorKind::kUnsupported);
        EXPECT_TRUE(is_one_line_with(error, {"model.gguf", "expected"})) << error.what();
        if (lie.is_certain) {
          EXPECT_TRUE(is_one_line_with(error, {name})) << error.what();
        }
      }
    }
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace vitrine
