// SPDX-License-Identifier: Apache-2.0
// A config that leaves a key out means what transformers takes it to mean, or is refused. The
// answers come from transformers (absent_keys.py).
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr std::string_view kOld = "old: ";

json parse_file(const std::string& path) {
  return json::parse(read_text_file(path, uint64_t{1} << 24));
}

/// The spelling from before transformers 5, as absent_keys.py makes it.
json old_spelling(const std::string& oracle, json config) {
  json rope = config.at("rope_parameters");
  config.erase("rope_parameters");
  config["rope_theta"] = rope.at("rope_theta");
  rope.erase("rope_theta");
  if (const auto share = rope.find("partial_rotary_factor"); share != rope.end()) {
    if (oracle == "minimax_m2") {
      config["rotary_dim"] =
          static_cast<int>(share->get<double>() * config.at("head_dim").get<double>());
    } else {
      config["partial_rotary_factor"] = *share;
    }
    rope.erase(share);
  }
  if (rope.value("rope_type", "default") != "default") config["rope_scaling"] = rope;
  return config;
}

/// "rope_parameters.full_attention.rope_theta" taken out.
void erase_key(json& config, std::string_view key) {
  json* object = &config;
  for (size_t point = key.find('.'); point != key.npos; point = key.find('.')) {
    object = &object->at(std::string(key.substr(0, point)));
    key.remove_prefix(point + 1);
  }
  ASSERT_EQ(object->erase(std::string(key)), 1u) << key;
}

std::vector<int32_t> greedy(const std::string& path, std::vector<int32_t> ids, size_t count) {
  const auto engine = Engine::load(path, test_options());
  const SequenceId sequence = engine->create_sequence();
  std::vector<int32_t> made;
  std::span<const int32_t> next = ids;
  while (made.size() < count) {
    StepInput input;
    input.sequence = sequence;
    input.tokens = next;
    const std::span<const float> logits = engine->step({&input, 1}).back().scores;
    made.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
    next = {&made.back(), 1};
  }
  return made;
}

/// One oracle, whose config is edited in place.
class Edited {
 public:
  explicit Edited(const std::string& oracle) : oracle_(oracle) {
    for (const char* file : {"model.safetensors", "generation_config.json"}) {
      fs::copy_file(oracle_folder(oracle) + "/" + file, folder_ / file);
    }
    config_ = parse_file(oracle_folder(oracle) + "/config.json");
    const json answer = parse_file(oracle_folder(oracle) + "/oracle.json");
    tokens_ = answer.at("tokens").get<std::vector<int32_t>>();
    expected_ = answer.at("greedy").get<std::vector<int32_t>>();
    expected_.resize(kGreedy);
  }

  /// Null: it has to be refused.
  void expect_without(const std::string& key, const std::vector<int32_t>* ids) {
    json config = config_;
    std::string_view name = key;
    if (name.starts_with(kOld)) {
      name.remove_prefix(kOld.size());
      config = old_spelling(oracle_, config);
    }
    erase_key(config, name);
    write_bytes(folder_ / "config.json", config.dump());
    try {
      if (ids == nullptr) {
        Engine::check(folder_.path());
        ADD_FAILURE() << oracle_ << " without " << key << " is not refused";
      } else {
        EXPECT_EQ(greedy(folder_.path(), tokens_, ids->size()), *ids) << oracle_ << ", " << key;
        ++answered_;
      }
    } catch (const Error& error) {
      EXPECT_TRUE(is_one_line_with(error, {folder_.path()})) << error.what();
    }
  }
  const std::vector<int32_t>& expected() const { return expected_; }
  int answered() const { return answered_; }

 private:
  static constexpr size_t kGreedy = 8;

  std::string oracle_;
  TemporaryFolder folder_;
  json config_;
  std::vector<int32_t> tokens_, expected_;
  int answered_ = 0;
};

TEST(AbsentKeys, MeanWhatTransformersTakesThemFor) {
  const json all = parse_file(testing_support::test_data("absent_keys.json"));
  int answered = 0, keys = 0;
  for (const std::string& oracle : oracle_names()) {
    const json& result = all.at(oracle);
    Edited edited(oracle);
    for (const std::string key : result.at("same")) edited.expect_without(key, &edited.expected());
    for (const std::string key : result.at("refused")) edited.expect_without(key, nullptr);
    for (const auto& [key, ids] : result.at("other").items()) {
      const auto expected = ids.get<std::vector<int32_t>>();
      edited.expect_without(key, &expected);
    }
    answered += edited.answered();
    keys += static_cast<int>(result.at("same").size() + result.at("other").size());
  }
  // Few are refused that transformers runs.
  EXPECT_GT(answered, keys * 9 / 10);
}

}  // namespace
}  // namespace vitrine::testing
