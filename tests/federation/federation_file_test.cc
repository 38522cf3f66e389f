// SPDX-License-Identifier: Apache-2.0
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
  for (const char* members : {R"("base": "", "specialists": [{"name": "a"}, {"name": "b"}])",
                              R"("base": "m", "specialists": [{"name": "a", "adapter": ""},
                                 {"name": "b"}])",
                              R"("specialists": [{"name": "a", "model": ""}, {"name": "b"}])"}) {
    expect("not empty", with(members, good));
  }
  expect("'fit' is 'x'", with(kTwo, good + R"(, "fit": "x")"));
  EXPECT_THROW(FederationSpec::load(folder_.path()), Error);
  expect("a list of 3; expected a list of 2",
         with(kTwo, R"({"kind": "mixture", "weights": [0.5, 0.25, 0.25]})"));
  expect("", "[]");
  expect("", R"({"federation": 1, )");
}

/// A checkpoint of one tensor in each of its files.
void write_model(const std::string& folder, int files) {
  std::filesystem::create_directories(folder);
  write_bytes(folder + "/config.json", "{}");
  std::string map;
  for (int i = 0; i < files; ++i) {
    const std::string name = "model-" + std::to_string(i) + ".safetensors";
    const std::string tensor = "t" + std::to_string(i);
    const std::string header =
        "{\"" + tensor + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    write_bytes(folder + "/" + name, bytes + header + "abcd");
    map += (i == 0 ? "\"" : ", \"") + tensor + "\": \"" + name + "\"";
  }
  write_bytes(folder + "/model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
}

TEST_F(FederationFile, AGateForOtherMembersIsRefused) {
  write_model(folder_ / "model", 2);
  for (const std::string name : {"one", "two"}) {
    std::filesystem::create_directories(folder_ / name);
    write_bytes(folder_ / (name + "/adapter_model.safetensors"), name);
    write_bytes(folder_ / (name + "/adapter_config.json"), R"({"lora_alpha": 16})");
  }
  const std::string members = R"("base": "model", "specialists": [{"name": "a", "adapter": "one"},
    {"name": "b", "adapter": "two"}, {"name": "c"}])";
  const auto gate = [&](const std::vector<std::string>& hashes) {
    std::string list;
    for (const std::string& hash : hashes) list += (list.empty() ? "\"" : ", \"") + hash + "\"";
    return with(members, R"({"kind": "gate", "hidden_size": 1, "weights": [1, 2, 3],
      "bias": [0, 0, 0], "members": [)" +
                             list + "]}");
  };
  const std::string none(64, '0');
  const std::vector<std::string> fitted =
      member_hashes(FederationSpec::load(write(gate({none, none, none}))));
  EXPECT_EQ(refusal(gate(fitted)), "accepted");
  expect("fitted for other members", gate({fitted[1], fitted[0], fitted[2]}));
  expect("fitted for other members", gate({fitted[0], none, fitted[2]}));
  // Each file counts, of the base too: the gate reads its hidden state.
  const std::pair<const char*, const char*> changes[] = {{"one/adapter_model.safetensors", "'a'"},
                                                         {"two/adapter_config.json", "'b'"},
                                                         {"model/config.json", "'a'"},
                                                         {"model/model-0.safetensors", "'a'"},
                                                         {"model/model-1.safetensors", "'a'"}};
  for (const auto& [name, who] : changes) {
    const std::string before = read_text_file(folder_ / name, 1000);
    std::string after = before;
    after.back() = after.back() == ' ' ? '\n' : ' ';
    if (after != before && name[0] == 'm' && after.find('{') == 0) after = "{} ";
    write_bytes(folder_ / name, after);
    const std::string found = refusal(gate(fitted));
    EXPECT_NE(found.find("fitted for other members"), std::string::npos) << name << ": " << found;
    EXPECT_NE(found.find(who), std::string::npos) << name << ": " << found;
    write_bytes(folder_ / name, before);
  }
  // A file of an earlier version says what to do.
  expect("earlier version", gate({sha256_of_file(folder_ / "one/adapter_model.safetensors"),
                                  sha256_of_file(folder_ / "two/adapter_model.safetensors"),
                                  sha256_of_file(folder_ / "model/model-0.safetensors")}));
}

}  // namespace
}  // namespace vitrine::testing
