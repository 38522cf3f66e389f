// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "json_log_fixture.h"
#include "record_builder.h"

namespace vitrine {
namespace {

using namespace audit_test;
using nlohmann::json;
namespace fs = std::filesystem;

/// NaN and the infinities are null; anything else must come back bit for bit.
void expect_float(const json& got, float want) {
  if (!std::isfinite(want)) {
    EXPECT_TRUE(got.is_null()) << got << " for " << want;
    return;
  }
  ASSERT_TRUE(got.is_number_float()) << got << " for " << want;
  const float value = got.get<float>();
  EXPECT_EQ(std::memcmp(&value, &want, 4), 0) << got << " for " << want;
}

void expect_record(const json& got, const TokenRecord& want, bool has_text) {
  const auto expect_token = [&](const json& object, int32_t token) {
    EXPECT_EQ(object.at("token"), token);
    ASSERT_EQ(object.contains("text"), has_text);
    ASSERT_EQ(object.contains("piece"), has_text);
    ASSERT_EQ(object.contains("bytes"), has_text);
    if (has_text) {
      const TokenPiece told = told_piece(token);
      EXPECT_EQ(object.at("piece"), told.piece);
      std::string bytes;
      for (const json& byte : object.at("bytes")) {
        bytes += static_cast<char>(byte.get<uint8_t>());
      }
      EXPECT_EQ(bytes, *told.bytes);
      const bool is_utf8 = token % 5 != 2;
      EXPECT_EQ(object.at("text"), is_utf8 ? bytes : "\uFFFD" + bytes.substr(2));
    }
  };
  EXPECT_EQ(got.size(), has_text ? 8u : 5u);
  EXPECT_EQ(got.at("sequence"), want.sequence);
  EXPECT_EQ(got.at("position"), want.position);
  expect_token(got, want.token);
  ASSERT_EQ(got.at("layers").size(), want.layers.size());
  for (size_t i = 0; i < want.layers.size(); ++i) {
    const json& layer = got.at("layers")[i];
    const LayerRecord& expected = want.layers[i];
    EXPECT_EQ(layer.at("layer"), expected.layer);
    expect_float(layer.at("residual_norm"), expected.residual_norm);
    ASSERT_EQ(layer.at("experts").size(), expected.routes.size());
    ASSERT_EQ(layer.at("weights").size(), expected.routes.size());
    for (size_t slot = 0; slot < expected.routes.size(); ++slot) {
      EXPECT_EQ(layer.at("experts")[slot], expected.routes[slot].expert);
      expect_float(layer.at("weights")[slot], expected.routes[slot].weight);
    }
    for (const auto& [key, value] : {std::pair("scores", &SelectionRecord::score),
                                     std::pair("selection_keys", &SelectionRecord::key)}) {
      ASSERT_EQ(layer.contains(key), !expected.selection.empty());
      if (expected.selection.empty()) continue;
      ASSERT_EQ(layer.at(key).size(), expected.selection.size());
      for (size_t slot = 0; slot < expected.selection.size(); ++slot) {
        expect_float(layer.at(key)[slot], expected.selection[slot].*value);
      }
    }
    ASSERT_EQ(layer.contains("router_probs"), !expected.router_probs.empty());
    for (size_t expert = 0; expert < expected.router_probs.size(); ++expert) {
      expect_float(layer.at("router_probs").at(expert), expected.router_probs[expert]);
    }
  }
  const json& prediction = got.at("prediction");
  ASSERT_EQ(prediction.is_null(), !want.has_prediction);
  if (!want.has_prediction) return;
  expect_token(prediction, want.prediction.token);
  EXPECT_EQ(prediction.at("generated"), want.prediction.generated);
  expect_float(prediction.at("logprob"), want.prediction.logprob);
  expect_float(prediction.at("entropy"), want.prediction.entropy);
  EXPECT_EQ(prediction.contains("sampler"), want.prediction.sampled.candidates > 0);
  if (prediction.contains("sampler")) {
    EXPECT_EQ(prediction.at("sampler").at("candidates"), want.prediction.sampled.candidates);
    expect_float(prediction.at("sampler").at("probability"), want.prediction.sampled.probability);
  }
  const ConstraintDecision& constraint = want.prediction.constraint;
  ASSERT_EQ(prediction.contains("constraint"), constraint.is_given());
  if (constraint.is_given()) {
    const json& found = prediction.at("constraint");
    EXPECT_EQ(found.at("allowed"), constraint.allowed);
    EXPECT_EQ(found.at("first_ruled_out"), constraint.first_ruled_out);
    EXPECT_EQ(found.at("limited"), constraint.is_limited);
    EXPECT_EQ(found.at("attempt"), constraint.attempt);
    expect_float(found.at("removed"), constraint.removed);
    expect_float(found.at("mask_us"), constraint.mask_microseconds);
  }
  char digest[17];
  std::snprintf(digest, sizeof digest, "%016llx",
                static_cast<unsigned long long>(want.prediction.logits_digest));
  EXPECT_EQ(prediction.at("logits_digest"), digest);
  ASSERT_EQ(prediction.at("top_logprobs").size(), want.prediction.alternatives.size());
  for (size_t rank = 0; rank < want.prediction.alternatives.size(); ++rank) {
    expect_token(prediction.at("top_logprobs")[rank], want.prediction.alternatives[rank].token);
    expect_float(prediction.at("top_logprobs")[rank].at("logprob"),
                 want.prediction.alternatives[rank].logprob);
  }
}

TEST_F(JsonLogTest, WhatIsNotKnownOfATokenIsNotTold) {
  Rng rng(12);
  const AuditLayout layout = make_layout({{2, 8}}, AuditLevel::kStandard, rng);
  JsonLog log(at("out.json"), some_header(), piece);  // pieces alone
  log.sink().open(layout, audit_record_bytes(layout, 3, 3));
  const BuiltPass built = build_pass(layout, 0, 3, rng);
  send(log.sink(), built.bytes);
  log.finish("length");
  const json found = json::parse(read(at("out.json")));
  for (const json& record : found.at("records")) {
    EXPECT_EQ(record.at("piece"), piece(record.at("token").get<int32_t>()));
    EXPECT_FALSE(record.contains("text"));
    EXPECT_FALSE(record.contains("bytes"));
  }
}

TEST_F(JsonLogTest, ASeedIsANumberWhereEveryReaderKeepsIt) {
  const AuditLayout layout = four_layers();
  for (const uint64_t seed : {uint64_t{7}, (uint64_t{1} << 53) - 1, uint64_t{1} << 53}) {
    LogHeader header = some_header();
    header.seed = seed;
    JsonLog log(at("out.json"), header, {}, true);
    log.sink().open(layout, audit_record_bytes(layout, 1, 1));
    log.finish("length");
    const json found = json::parse(read(at("out.json"))).at("seed");
    if (seed < uint64_t{1} << 53) {
      EXPECT_EQ(found, seed);
    } else {
      EXPECT_EQ(found, "9007199254740992");
    }
  }
}

TEST_F(JsonLogTest, EveryFieldComesBack) {
  for (const AuditLevel level : {AuditLevel::kStandard, AuditLevel::kFull}) {
    for (const bool has_text : {false, true}) {
      Rng rng(11);
      AuditLayout layout = with_constraint(
          make_layout({{2, 8, RouterKind::kSigmoidScores}, {0, 0}, {4, 60}}, level, rng));
      layout.mode = AuditMode::kNaive;
      JsonLog log(at("out.json"), some_header(),
                  has_text ? told_piece : std::function<TokenPiece(int32_t)>(), true);
      std::vector<TokenRecord> seen;
      log.on_record([&](const TokenRecord& record) { seen.push_back(record); });
      log.sink().open(layout, audit_record_bytes(layout, 30, 30));
      std::vector<TokenRecord> expected;
      constexpr uint64_t kPasses = 400;  // several times the ring and the file's buffer
      for (uint64_t pass = 0; pass < kPasses; ++pass) {
        const BuiltPass built = build_pass(layout, pass, uniform(rng, 1, 30), rng);
        send(log.sink(), built.bytes);
        expected.insert(expected.end(), built.expected.begin(), built.expected.end());
      }
      EXPECT_FALSE(fs::exists(at("out.json"))) << "the name is taken in finish()";
      log.finish("end of text");
      EXPECT_EQ(names(), std::vector<std::string>{"out.json"});

      const json parsed = json::parse(read(at("out.json")));
      EXPECT_EQ(parsed.at("schema"), "vitrine.audit/1");
      EXPECT_EQ(parsed.at("model"), json({{"path", "models/a \"quoted\"\\ path"},
                                          {"architecture", "qwen3_moe"},
                                          {"num_layers", 4},
                                          {"vocab_size", 8192},
                                          {"sha256",
                                           {{"config.json", std::string(64, 'f')},
                                            {"model.safetensors", std::string(64, '0')}}}}));
      EXPECT_EQ(parsed.at("runtime"), json({{"device", "cpu"},
                                            {"kernels", "fused"},
                                            {"isa", "avx512"},
                                            {"threads", 2},
                                            {"options", {{"rope_frequencies", "bf16"}}}}));
      EXPECT_EQ(parsed.at("seed"), "18446744073709551615") << "a double would round it";
      EXPECT_EQ(parsed.at("sampler"),
                json({{"temperature", 0.8}, {"top_k", 40}, {"stage", "inf"}, {"note", "1x"}}));
      EXPECT_EQ(parsed.at("audit"),
                json({{"mode", "naive"},
                      {"level", level == AuditLevel::kFull ? "full" : "standard"},
                      {"layers",
                       {{{"layer", 0}, {"top_k", 2}, {"num_experts", 8}, {"router", "sigmoid"}},
                        {{"layer", 1}, {"top_k", 0}, {"num_experts", 0}},
                        {{"layer", 2}, {"top_k", 4}, {"num_experts", 60}}}}}));
      ASSERT_EQ(parsed.at("records").size(), expected.size());
      ASSERT_EQ(seen.size(), expected.size());
      size_t num_generated = 0;
      size_t num_scored = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        expect_record(parsed.at("records")[i], expected[i], has_text);
        EXPECT_EQ(seen[i].position, expected[i].position);
        if (expected[i].has_prediction) {
          (expected[i].prediction.generated ? num_generated : num_scored) += 1;
        }
      }
      EXPECT_EQ(parsed.at("stop_reason"), "end of text");
      EXPECT_EQ(parsed.at("counts"), json({{"passes", kPasses},
                                           {"tokens", expected.size()},
                                           {"generated", num_generated},
                                           {"scored", num_scored}}));
      fs::remove(at("out.json"));
    }
  }
}

TEST_F(JsonLogTest, FloatsOfEveryKind) {
  Rng rng(12);
  AuditLayout layout;
  layout.mode = AuditMode::kDeferred;
  layout.layers.push_back({.layer = 0, .residual_norm = 0});
  layout.token_words = 1;
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               -17.0f,
                               1e10f,
                               16777216.0f,
                               0.1f,
                               0x1.5c87fap-84f,
                               -0x1.5c87fap-84f,
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::min(),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::lowest(),
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  while (values.size() < 20000) {
    const uint32_t bits = static_cast<uint32_t>(rng());
    float value;
    std::memcpy(&value, &bits, 4);
    values.push_back(value);
  }
  JsonLog log(at("out.json"), {}, {}, true);
  log.sink().open(layout, audit_record_bytes(layout, 0, 1));
  std::vector<std::byte> bytes(audit_record_bytes(layout, 0, 1));
  for (const float value : values) {
    put(bytes, 0, AuditPassHeader{0, 1, 0, bytes.size()});
    put(bytes, sizeof(AuditPassHeader), AuditToken{});
    put(bytes, sizeof(AuditPassHeader) + sizeof(AuditToken), value);
    send(log.sink(), bytes);
  }
  log.finish("length");
  const json records = json::parse(read(at("out.json"))).at("records");
  ASSERT_EQ(records.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    expect_float(records[i].at("layers")[0].at("residual_norm"), values[i]);
  }
}

TEST_F(JsonLogTest, InvalidUtf8BecomesReplacementCharacters) {
  // Pairs of bytes and what Python's bytes.decode("utf-8", errors="replace") makes of them.
  const std::string r = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xC3", r},
      {"a\xFF"
       "b",
       "a" + r + "b"},
      {"\xE2\x82", r},
      {"\xE2\x82"
       "A",
       r + "A"},
      {"\xC0\x80", r + r},
      {"\xED\xA0\x80", r + r + r},
      {"\xF0\x9F\x98", r},
      {"\xF0\x9F\x98\x80", "😀"},
      {"\xF4\x90\x80\x80", r + r + r + r},
      {"\xF5\x80", r + r},
      {"\x80\xBF", r + r},
      {"\xE0\x80\xAF", r + r + r},
      {"\xF0\x80\x80", r + r + r},
      {"\xC3\xC3\xA9", r + "é"},
  };
  for (const auto& [bytes, text] : cases) {
    LogHeader header;
    header.model_path = bytes;
    JsonLog log(at("out.json"), header, {}, true);
    log.finish("length");
    EXPECT_EQ(json::parse(read(at("out.json"))).at("model").at("path"), text);
  }
}

TEST_F(JsonLogTest, NoPassAtAllIsStillALog) {
  JsonLog log(at("out.json"), some_header(), {}, true);
  log.finish("cancelled");
  const json parsed = json::parse(read(at("out.json")));
  EXPECT_EQ(parsed.at("records"), json::array());
  EXPECT_EQ(parsed.at("audit").at("mode"), "none");
  EXPECT_EQ(parsed.at("counts").at("tokens"), 0);
  EXPECT_EQ(parsed.at("stop_reason"), "cancelled");
}

TEST_F(JsonLogTest, LogsSideBySideDoNotMix) {
  Rng rng(17);
  const AuditLayout layout = four_layers();
  constexpr int kLogs = 4;
  std::vector<std::unique_ptr<JsonLog>> logs;
  for (int i = 0; i < kLogs; ++i) {
    // Two of them have the same target: the one that finishes last wins, whole.
    logs.push_back(std::make_unique<JsonLog>(at(i < 2 ? "same.json" : std::to_string(i) + ".json"),
                                             LogHeader{}, nullptr, i < 2));
    logs.back()->sink().open(layout, audit_record_bytes(layout, 4, 4));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kLogs; ++i) {
    threads.emplace_back([&, i] {
      Rng own(static_cast<uint64_t>(i));
      for (uint64_t pass = 0; pass < 1000; ++pass) {
        send(logs[static_cast<size_t>(i)]->sink(), build_pass(layout, pass, 1 + i, own).bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kLogs; ++i) {
    logs[static_cast<size_t>(i)]->finish("length");
    const std::string path = at(i < 2 ? "same.json" : std::to_string(i) + ".json");
    EXPECT_EQ(json::parse(read(path)).at("records").size(), 1000u * static_cast<size_t>(1 + i));
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"2.json", "3.json", "same.json"}));
}

}  // namespace
}  // namespace vitrine
