// SPDX-License-Identifier: Apache-2.0
// Parameters of ops are found by the name of their struct.
#include <gtest/gtest.h>

#include "ops/decoder_ops.h"
#include "ops/taps.h"
#include "tests/checkpoint/folders.h"

namespace vitrine::testing {
namespace {

using ops::OpNode;

TEST(OpParameters, AreFoundByTheirKind) {
  OpNode node{.type = "probe"};
  ops::TapParameters parameters;
  parameters.width = 12;
  node.parameters = std::make_shared<const ops::TapParameters>(parameters);
  EXPECT_EQ(node.parameters->kind(), "tap");
  EXPECT_EQ(node.find<ops::TapParameters>(), node.parameters.get());
  EXPECT_EQ(node.as<ops::TapParameters>().width, 12);
  EXPECT_EQ(node.find<ops::HeadParameters>(), nullptr);
  const Error error = error_of([&] { static_cast<void>(node.as<ops::HeadParameters>()); });
  EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  EXPECT_TRUE(is_one_line_with(error, {"op 'probe'", "those of 'tap'", "expected", "'head'"}))
      << error.what();
}

TEST(OpParameters, MayBeNone) {
  const OpNode node{.type = "probe"};
  EXPECT_EQ(node.parameters->kind(), "");
  EXPECT_EQ(node.find<ops::HeadParameters>(), nullptr);
  const Error error = error_of([&] { static_cast<void>(node.as<ops::HeadParameters>()); });
  EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  EXPECT_TRUE(is_one_line_with(error, {"op 'probe'", "no parameters", "'head'"})) << error.what();
}

}  // namespace
}  // namespace vitrine::testing
