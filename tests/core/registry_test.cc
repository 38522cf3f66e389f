// SPDX-License-Identifier: Apache-2.0
// What static initialisers make known.
#include "core/registry.h"

#include <gtest/gtest.h>

#include "vitrine/core.h"

namespace vitrine::core {
namespace {

TEST(Registry, FindsWhatOneFileRegistered) {
  Registry<std::string, int> registry("op");
  EXPECT_TRUE(registry.add("second", 2));
  EXPECT_TRUE(registry.add("first", 1));
  ASSERT_NE(registry.find(std::string_view("second")), nullptr);
  EXPECT_EQ(*registry.find(std::string("second")), 2);
  EXPECT_EQ(registry.find(std::string_view("third")), nullptr);
  EXPECT_EQ(registry.entries(), (std::vector<int>{1, 2}));
}

TEST(Registry, AKeyThatTwoFilesRegisteredIsAnError) {
  Registry<uint32_t, int> registry("block format");
  EXPECT_TRUE(registry.add(39, 1));
  EXPECT_TRUE(registry.add(7, 2));
  EXPECT_FALSE(registry.add(39, 3));
  EXPECT_EQ(*registry.find(7u), 2);
  try {
    registry.find(39u);
    ADD_FAILURE() << "was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_NE(std::string(error.what()).find("block format '39' is registered twice"),
              std::string::npos)
        << error.what();
  }
}

// Whatever it quotes: a log of messages has a line for each.
TEST(Error, IsOneLine) {
  using namespace std::string_literals;
  EXPECT_EQ(Error(ErrorKind::kBadFile, "a\nb\tc\0d\x7f \u00e9"s).what(),
            "a\\nb\\x09c\\x00d\\x7f \u00e9"s);
}

}  // namespace
}  // namespace vitrine::core
