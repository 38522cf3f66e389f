// Federation files: what they say, and one line for each way to be wrong.
#include <gtest/gtest.h>

#include "tests/checkpoint/folders.h"
#include "vitrine/federation.h"

namespace vitrine::testing {
namespace {

class FederationFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = folder_ / "federation.json";
    write_bytes(path, text);
    return path;
  }
  std::string refusal(const std::string& text) {
    try {
      FederationSpec::load(write(text)).check_members();
    } catch (const Error& error) {
      EXPECT_TRUE(error.is_user_error()) << error.what();
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      EXPECT_NE(what.find("federation.json"), std::string::npos) << what;
      EXPECT_NE(what.find("expected"), std::string::npos) << what;
      return what;
    }
    return "accepted";
  }
  void expect(const std::string& part, const std::string& text) {
    const std::string found = refusal(text);
    EXPECT_NE(found.find(part), std::string::npos) << found;
  }
  TemporaryFolder folder_;
};

const std::string kTwo = R"("base": "model", "specialists": [{"name": "a", "adapter": "one"},
  {"name": "b"}])";

std::string with(const std::string& members, const std::string& combiner) {
  return R"({"federation": 1, )" + members + R"(, "combiner": )" + combiner + "}";
}

TEST_F(FederationFile, IsReadAndWritten) {
  FederationSpec spec =
      FederationSpec::load(write(with(kTwo, R"({"kind": "mixture", "weights": [0.25, 0.75]})")));
  EXPECT_EQ(spec.base, folder_ / "model");
  ASSERT_EQ(spec.specialists.size(), 2u);
  EXPECT_EQ(spec.specialists[0].adapter, folder_ / "one");
  EXPECT_EQ(spec.specialists[0].model, spec.base);
  EXPECT_EQ(spec.specialists[1].adapter, "");
  spec.path = folder_ / "deeper/again.json";
  spec.fit_json = R"({"window":3})";
  std::filesystem::create_directories(folder_ / "deeper");
  write_bytes(spec.path, spec.to_json());
  const FederationSpec again = FederationSpec::load(spec.path);
  EXPECT_EQ(again.base, spec.base);
  EXPECT_EQ(again.specialists[0].adapter, spec.specialists[0].adapter);
  EXPECT_EQ(again.combiner.weights, spec.combiner.weights);
  EXPECT_EQ(again.fit_json, spec.fit_json);

  spec.combiner = {};
  spec.combiner.kind = CombinerSpec::Kind::kGate;
  spec.combiner.hidden_size = 3;
  spec.combiner.gate = {0.1F, -2.5e-8F, 3.0F, 1e5F, 0.0F, 0.3F};
  spec.combiner.bias = {0.7F, -0.7F};
  spec.combiner.members = {std::string(64, 'a'), std::string(64, 'b')};
  write_bytes(spec.path, spec.to_json());
  const FederationSpec gate = FederationSpec::load(spec.path);
  EXPECT_EQ(gate.combiner.gate, spec.combiner.gate);
  EXPECT_EQ(gate.combiner.bias, spec.combiner.bias);
  EXPECT_EQ(gate.combiner.members, spec.combiner.members);
}

TEST_F(FederationFile, EachMistakeIsToldInOneLine) {
  const std::string good = R"({"kind": "mixture", "weights": [0.5, 0.5]})";
  expect("which is not there", with(kTwo, good));
  expect("sum to 0.9", with(kTwo, R"({"kind": "mixture", "weights": [0.5, 0.4]})"));
  expect("weights", with(kTwo, R"({"kind": "mixture", "weights": [0.5]})"));
  expect("weights", with(kTwo, R"({"kind": "mixture", "weights": [1.5, -0.5]})"));
  expect("weights", with(kTwo, R"({"kind": "mixture"})"));
  expect("kind", with(kTwo, R"({"kind": "vote", "weights": [0.5, 0.5]})"));
  expect("'temperature' is unknown",
         with(kTwo, R"({"kind": "mixture", "weights": [0.5, 0.5], "temperature": 1})"));
  expect("2 to 64", with(R"("base": "model", "specialists": [{"name": "a"}])", good));
  expect("no other specialist has",
         with(R"("base": "m", "specialists": [{"name": "a"}, {"name": "a"}])", good));
  expect("adapter", with(R"("specialists": [{"name": "a", "adapter": "x"}, {"name": "b"}])", good));
  expect("model", with(R"("specialists": [{"name": "a"}, {"name": "b"}])", good));
  expect("model",
         with(R"("base": "m", "specialists": [{"name": "a", "model": "x"}, {"name": "b"}])", good));
  expect("combiner", R"({"federation": 1, )" + kTwo + "}");
  expect("federation", R"({"federation": 2, )" + kTwo + "}");
  expect("hidden_size", with(kTwo, R"({"kind": "gate", "weights": [], "bias": [0, 0]})"));
  expect("weights", with(kTwo, R"({"kind": "gate", "hidden_size": 2, "weights": [1, 2, 3],
    "bias": [0, 0], "members": ["", ""]})"));
  expect("members", with(kTwo, R"({"kind": "gate", "hidden_size": 1, "weights": [1, 2],
    "bias": [0, 0], "members": [""]})"));
  expect("", "[]");
  expect("", R"({"federation": 1, )");
}

TEST_F(FederationFile, AGateForOtherMembersIsRefused) {
  std::filesystem::create_directories(folder_ / "model");
  for (const std::string name : {"one", "two"}) {
    std::filesystem::create_directories(folder_ / name);
    write_bytes(folder_ / (name + "/adapter_model.safetensors"), name);
  }
  const std::string members = R"("base": "model", "specialists": [{"name": "a", "adapter": "one"},
    {"name": "b", "adapter": "two"}])";
  const std::string one = sha256_of_file(folder_ / "one/adapter_model.safetensors");
  const std::string two = sha256_of_file(folder_ / "two/adapter_model.safetensors");
  const auto gate = [&](const std::string& first, const std::string& second) {
    return with(members, R"({"kind": "gate", "hidden_size": 1, "weights": [1, 2],
      "bias": [0, 0], "members": [")" +
                             first + R"(", ")" + second + R"("]})");
  };
  EXPECT_EQ(refusal(gate(one, two)), "accepted");
  expect("fitted for other members", gate(two, one));
  expect("fitted for other members", gate(one, std::string(64, '0')));
}

}  // namespace
}  // namespace vitrine::testing
