// SPDX-License-Identifier: Apache-2.0
// What texts make of a model: experts beside the recorder's log, channels beside what was planted,
// files that lie, windows that cover, and drift.
#include "vitrine/calibration_statistics.h"

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "tests/engine/edited_model.h"
#include "vitrine/audit_log.h"
#include "vitrine/calibration.h"
#include "vitrine/calibration_cover.h"
#include "vitrine/quant.h"

namespace vitrine::testing {
namespace {

using nlohmann::json;

std::vector<std::vector<int32_t>> texts_of(int count, int length, uint32_t seed = 50) {
  std::vector<std::vector<int32_t>> texts;
  for (int i = 0; i < count; ++i) {
    texts.push_back(prompt_ids(length - i % 3, 256, seed + static_cast<uint32_t>(i)));
  }
  return texts;
}

/// Writes what the recorder saw of these texts.
void write_log(const std::string& model, const std::vector<std::vector<int32_t>>& texts,
               const std::string& path, VtrOptions log_options = {}) {
  EngineOptions options = test_options();
  options.kv_codecs = {"f32"};
  options.audit_mode = AuditMode::kDeferred;
  const auto engine = Engine::load(model, options);
  LogHeader header;
  header.vocab_size = engine->summary().vocab_size;
  VtrLog log(path, header, log_options);
  engine->set_audit_sink(&log.sink());
  for (const std::vector<int32_t>& text : texts) {
    const SequenceId sequence = engine->create_sequence();
    Rows ignored;
    feed(*engine, sequence, text, 0, text.size(), 0, ignored);
    engine->release(sequence);
  }
  engine->set_audit_sink(nullptr);
  log.finish("length");
}

std::vector<std::vector<int64_t>> tokens_of(const std::vector<LayerRouting>& routing) {
  std::vector<std::vector<int64_t>> all;
  for (const LayerRouting& layer : routing) all.push_back(layer.tokens);
  return all;
}

TEST(Statistics, CountExpertsAsTheRecorderDoes) {
  for (const char* oracle : {"qwen3_moe", "qwen3_moe_sparse2", "deepseek_v2", "granitemoe"}) {
    SCOPED_TRACE(oracle);
    const std::string model = oracle_folder(oracle);
    const auto texts = texts_of(5, 31);
    const CalibrationStatistics statistics = measure_statistics(model, texts);
    const TemporaryFolder folder;
    write_log(model, texts, folder / "run.vtr");
    const AuditRouting log = read_audit_routing({folder / "run.vtr"});
    EXPECT_EQ(tokens_of(statistics.routing), tokens_of(log.routing));
    EXPECT_EQ(statistics.tokens, log.tokens);
    ASSERT_FALSE(statistics.routing.empty());
    // Gate masses, from the weights of the records, which the log has in 16 bits.
    std::map<int, std::vector<double>> mass;
    VtrReader reader(folder / "run.vtr");
    for (VtrPage page; reader.next(page);) {
      for (const TokenRecord& record : page.records) {
        for (const LayerRecord& layer : record.layers) {
          for (const RouteRecord& route : layer.routes) {
            std::vector<double>& sums = mass[layer.layer];
            sums.resize(std::max(sums.size(), static_cast<size_t>(route.expert) + 1));
            sums[static_cast<size_t>(route.expert)] += double{route.weight};
          }
        }
      }
    }
    for (const LayerRouting& layer : statistics.routing) {
      std::vector<double>& expected = mass[layer.layer];
      expected.resize(layer.gate_mass.size());
      for (size_t e = 0; e < expected.size(); ++e) {
        EXPECT_NEAR(layer.gate_mass[e], expected[e], 1e-3 + 1e-3 * expected[e]);
      }
    }
  }
}

TEST(Statistics, HangOnNoNumberOfThreads) {
  const std::string model = oracle_folder("qwen3_moe");
  StatisticsOptions options;
  options.threads = 1;
  const std::string one = statistics_json(measure_statistics(model, texts_of(4, 40), options));
  options.threads = 3;
  EXPECT_EQ(statistics_json(measure_statistics(model, texts_of(4, 40), options)), one);
}

TEST(Statistics, FindsPlantedChannels) {
  // Three channels of a norm 40 times as large: nothing else of that norm stands out.
  const EditedModel edited("qwen3_moe", {}, [](EditedModel::Tensors& tensors) {
    EditedModel::Tensor& norm = tensors.at("model.layers.1.post_attention_layernorm.weight");
    const auto width = static_cast<size_t>(norm.shape[0]);
    std::vector<float> values(width);
    widen_to_f32(norm.bytes.data(), norm.dtype, static_cast<int64_t>(width), values.data());
    for (const size_t channel : {3, 17, 40}) values[channel] = channel == 17 ? -60.0f : 40.0f;
    norm.dtype = DType::kF32;
    norm.bytes.resize(width * sizeof(float));
    std::memcpy(norm.bytes.data(), values.data(), norm.bytes.size());
  });
  const CalibrationStatistics statistics = measure_statistics(edited.path(), texts_of(4, 30));
  size_t found = 0;
  for (const ChannelStatistics& norm : statistics.channels) {
    EXPECT_GT(norm.width, 0);
    EXPECT_GT(norm.median, norm.mean);
    EXPECT_GE(norm.largest, norm.median);
    if (norm.layer != 1 || norm.reader == "qkv") continue;
    ++found;
    EXPECT_EQ(norm.outliers, 3);
    std::set<int64_t> channels;
    for (const OutlierChannel& one : norm.worst) channels.insert(one.channel);
    EXPECT_EQ(channels, (std::set<int64_t>{3, 17, 40}));
    EXPECT_EQ(norm.worst.front().largest, norm.largest);
  }
  EXPECT_EQ(found, 1u);
  EXPECT_EQ(statistics.channels.size(), 2 * 3u);
}

TEST(Statistics, NamesStarvedExperts) {
  CalibrationStatistics statistics;
  statistics.tokens = 100;
  statistics.starved_below = 5;
  statistics.routing = {{1, {0, 5, 95}, {}}, {4, {4, 96}, {}}};
  const std::vector<StarvedExpert> starved = starved_experts(statistics);
  ASSERT_EQ(starved.size(), 2u);
  EXPECT_EQ(starved[0].layer, 1);
  EXPECT_EQ(starved[0].expert, 0);
  EXPECT_EQ(starved[1].layer, 4);
  EXPECT_EQ(starved[1].tokens, 4);
  const CalibrationStatistics measured =
      measure_statistics(oracle_folder("qwen3_moe"), texts_of(1, 3));
  EXPECT_GT(starved_experts(measured).size(), 0u);
  EXPECT_EQ(measured.starved_below, measured.channels.front().width);
  EXPECT_TRUE(measure_statistics(oracle_folder("llama"), texts_of(1, 9)).routing.empty());
}

CalibrationTexts calibration_of(const std::string& model) {
  CalibrationTexts calibration;
  calibration.texts = texts_of(2, 20);
  calibration.statistics = measure_statistics(model, calibration.texts);
  return calibration;
}

TEST(Statistics, StandInTheFile) {
  const std::string model = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  const CalibrationTexts made = calibration_of(model);
  write_calibration(folder / "a.vcal", made);
  const CalibrationTexts read = read_calibration(folder / "a.vcal");
  ASSERT_TRUE(read.statistics);
  EXPECT_EQ(statistics_json(*read.statistics), statistics_json(*made.statistics));
  EXPECT_EQ(statistics_json(read_statistics(folder / "a.vcal")), statistics_json(*made.statistics));
  require_statistics_of(*read.statistics, model, "a.vcal");
  // Files of before have none.
  write_bytes(folder / "old.vcal",
              R"({"schema": "vitrine-calibration", "schema_version": 1, "tokenizer_sha256": "",
                  "manifest": {}, "texts": [[1, 2, 3]]})");
  EXPECT_FALSE(read_calibration(folder / "old.vcal").statistics);
  const Error none = error_of([&] { read_statistics(folder / "old.vcal"); });
  EXPECT_TRUE(is_one_line_with(none, {"old.vcal", "no statistics"})) << none.what();
  const Error other = error_of(
      [&] { require_statistics_of(*read.statistics, oracle_folder("deepseek_v2"), "a.vcal"); });
  EXPECT_EQ(other.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(other, {"a.vcal", "statistics/routing", "experts"})) << other.what();
}

TEST(Statistics, RefusesFilesThatLie) {
  const json good =
      json::parse(statistics_json(*calibration_of(oracle_folder("qwen3_moe")).statistics));
  EXPECT_NO_THROW(parse_statistics(good.dump(), "a.vcal"));
  const auto refused = [&](const char* place, const json& value,
                           std::initializer_list<std::string_view> words) {
    SCOPED_TRACE(place);
    json changed = good;
    changed[json::json_pointer(place)] = value;
    const Error error = error_of([&] { parse_statistics(changed.dump(), "a.vcal"); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  };
  refused("/tokens", -1, {"a.vcal", "statistics/tokens", "whole number"});
  refused("/tokens", 1.5, {"statistics/tokens"});
  refused("/tokens", nullptr, {"statistics/tokens"});  // what a NaN becomes in JSON
  refused("/routing", 7, {"statistics/routing", "a list"});
  refused("/routing/0", 7, {"statistics/routing/0", "an object"});
  refused("/routing/0/tokens/1", nullptr, {"routing/0/tokens"});
  refused("/routing/0/tokens/1", -3, {"routing/0/tokens"});
  refused("/routing/0/tokens/1", 1 << 30, {"routing/0/tokens", "0 to"});
  refused("/routing/0/tokens", json::array(), {"routing/0/tokens"});
  refused("/routing/0/gate_mass", json::array({1.0}), {"routing/0/gate_mass", "as there are"});
  refused("/routing/0/gate_mass/0", -1.0, {"routing/0/gate_mass"});
  refused("/routing/0/gate_mass/0", nullptr, {"routing/0/gate_mass"});
  refused("/routing/1/layer", 0, {"routing/1/layer", "above"});
  refused("/channels/0/largest", "x", {"channels/0/largest"});
  refused("/channels/0/outliers", 1 << 20, {"channels/0/outliers"});
  const std::string text = good.dump();
  for (const size_t cut : {size_t{1}, text.size() / 3, text.size() - 1}) {
    EXPECT_EQ(error_of([&] { parse_statistics(text.substr(0, cut), "a"); }).kind(),
              ErrorKind::kBadFile);
  }
  const TemporaryFolder folder;
  write_calibration(folder / "a.vcal", calibration_of(oracle_folder("qwen3_moe")));
  const std::string file = read_bytes(folder / "a.vcal");
  for (size_t part = 1; part < 8; ++part) {
    write_bytes(folder / "cut.vcal", file.substr(0, file.size() * part / 8));
    EXPECT_EQ(error_of([&] { read_calibration(folder / "cut.vcal"); }).kind(), ErrorKind::kBadFile);
  }
  std::string with_nan = file;
  const size_t at = with_nan.find("\"gate_mass\":[") + 13;
  with_nan.replace(at, with_nan.find(',', at) - at, "NaN");
  write_bytes(folder / "nan.vcal", with_nan);
  EXPECT_EQ(error_of([&] { read_calibration(folder / "nan.vcal"); }).kind(), ErrorKind::kBadFile);
  for (const auto& texts : {std::vector<std::vector<int32_t>>{}, {{1, 2}, {}}}) {
    EXPECT_EQ(error_of([&] { measure_statistics(oracle_folder("qwen3_moe"), texts); }).kind(),
              ErrorKind::kInvalidArgument);
  }
}

/// Experts with fewer tokens than this in windows up to the budget, counted anew.
int64_t starved_with(const std::string& model, const std::vector<std::vector<int32_t>>& windows,
                     const std::vector<size_t>& order, int64_t budget, int64_t need) {
  std::vector<std::vector<int32_t>> texts;
  int64_t taken = 0;
  for (const size_t i : order) {
    if (taken >= budget) break;
    texts.push_back(windows[i]);
    if (std::ssize(windows[i]) > budget - taken) {
      texts.back().resize(static_cast<size_t>(budget - taken));
    }
    taken += std::ssize(texts.back());
  }
  StatisticsOptions options;
  options.starved_below = need;
  return std::ssize(starved_experts(measure_statistics(model, texts, options)));
}

TEST(Cover, LeavesFewerExpertsStarving) {
  const std::string model = oracle_folder("qwen3_moe");
  // Most windows are one token again and again, which asks for the same experts.
  std::vector<std::vector<int32_t>> windows;
  for (int i = 0; i < 24; ++i) {
    windows.push_back(i % 4 == 3 ? prompt_ids(20, 256, 200 + static_cast<uint32_t>(i))
                                 : std::vector<int32_t>(20, 7));
  }
  CoverOptions options;
  options.tokens = 95;
  options.starved_below = 12;
  options.threads = 1;
  const WindowChoice choice = cover_windows(model, windows, options);
  EXPECT_EQ(choice.order.size(), 5u);
  const json record = json::parse(choice.record);
  std::vector<size_t> in_turn(windows.size());
  std::iota(in_turn.begin(), in_turn.end(), size_t{0});
  EXPECT_EQ(record["starved"], starved_with(model, windows, choice.order, 95, 12));
  EXPECT_EQ(record["starved_in_turn"], starved_with(model, windows, in_turn, 95, 12));
  EXPECT_LT(record["starved"].get<int>(), record["starved_in_turn"].get<int>());
  EXPECT_EQ(record["pool_tokens"], 480);
  EXPECT_TRUE(record["live"].is_null());
  options.threads = 3;
  EXPECT_EQ(cover_windows(model, windows, options).order, choice.order);
  // Live routing of one window's text asks for windows like it.
  const TemporaryFolder folder;
  write_log(model, {std::vector<int32_t>(60, 7)}, folder / "run.vtr");
  options.live = read_audit_routing({folder / "run.vtr"});
  options.tokens = 20;
  const WindowChoice driven = cover_windows(model, windows, options);
  ASSERT_EQ(driven.order.size(), 1u);
  EXPECT_EQ(windows[driven.order[0]], std::vector<int32_t>(20, 7));
  EXPECT_EQ(json::parse(driven.record)["live"]["logs"][0]["name"], "run.vtr");
  EXPECT_EQ(json::parse(driven.record)["live"]["tokens"], 60);
  options.live.routing.pop_back();
  EXPECT_EQ(error_of([&] { cover_windows(model, windows, options); }).kind(),
            ErrorKind::kInvalidArgument);
}

TEST(AuditRouting, ReadsCountersAndRefusesWhatIsNotSealed) {
  const std::string model = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  const auto texts = texts_of(6, 50);
  const SealKey key = SealKey::generate();
  write_log(model, texts, folder / "full.vtr", {.seal = key});
  write_log(model, texts, folder / "counters.vtr", {.detail = LogDetail::kCounters, .seal = key});
  const AuditRouting full = read_audit_routing({folder / "full.vtr"}, key.public_key());
  const AuditRouting counters = read_audit_routing({folder / "counters.vtr"}, key.public_key());
  EXPECT_EQ(tokens_of(full.routing), tokens_of(counters.routing));
  EXPECT_EQ(full.tokens, counters.tokens);
  const AuditRouting both = read_audit_routing({folder / "full.vtr", folder / "counters.vtr"});
  EXPECT_EQ(both.tokens, 2 * full.tokens);
  EXPECT_EQ(both.routing[0].tokens[0], 2 * full.routing[0].tokens[0]);
  EXPECT_EQ(both.logs.size(), 2u);
  const Error wrong = error_of(
      [&] { read_audit_routing({folder / "full.vtr"}, SealKey::generate().public_key()); });
  EXPECT_TRUE(is_one_line_with(wrong, {"full.vtr", "is broken"})) << wrong.what();
  std::string bytes = read_bytes(folder / "full.vtr");
  bytes[bytes.size() / 2] ^= 1;
  write_bytes(folder / "changed.vtr", bytes);
  EXPECT_EQ(error_of([&] { read_audit_routing({folder / "changed.vtr"}); }).kind(),
            ErrorKind::kBadFile);
  write_log(oracle_folder("deepseek_v2"), texts, folder / "other.vtr");
  const Error other = error_of([&] {
    read_audit_routing({folder / "full.vtr", folder / "other.vtr"});
  });
  EXPECT_TRUE(is_one_line_with(other, {"other.vtr", "full.vtr", "one model"})) << other.what();
  write_log(oracle_folder("llama"), texts, folder / "dense.vtr");
  EXPECT_TRUE(is_one_line_with(error_of([&] { read_audit_routing({folder / "dense.vtr"}); }),
                               {"dense.vtr", "neither counters"}));
  EXPECT_EQ(error_of([&] { read_audit_routing({}); }).kind(), ErrorKind::kInvalidArgument);
}

TEST(Drift, IsJensenShannonsDivergence) {
  // Taken by hand: the mean of both sums of p log2(p / m).
  const std::vector<LayerDrift> drift =
      routing_drift({{0, {10, 20, 30, 40}, {}}, {2, {5, 0, 5}, {}}, {3, {7, 0}, {}}},
                    {{0, {40, 30, 20, 10}, {}}, {2, {5, 0, 5}, {}}, {3, {0, 9}, {}}});
  ASSERT_EQ(drift.size(), 3u);
  EXPECT_NEAR(drift[0].divergence, 0.15356065532898455, 1e-12);
  EXPECT_EQ(drift[1].divergence, 0.0);
  EXPECT_DOUBLE_EQ(drift[2].divergence, 1.0);
  EXPECT_EQ(drift[1].layer, 2);
  for (const auto& live : std::vector<std::vector<LayerRouting>>{
           {}, {{0, {1, 2}, {}}}, {{1, {1, 2, 3}, {}}}, {{0, {0, 0, 0}, {}}}}) {
    EXPECT_EQ(error_of([&] {
                routing_drift({{0, {1, 2, 3}, {}}}, live);
              }).kind(),
              ErrorKind::kInvalidArgument);
  }
  EXPECT_EQ(error_of([&] { routing_drift({}, {}); }).kind(), ErrorKind::kInvalidArgument);
}

TEST(Drift, ByChanceIsWhatSamplesHave) {
  // Two samples of one distribution, many times over.
  const std::vector<double> shares = {0.4, 0.25, 0.15, 0.1, 0.06, 0.04};
  uint64_t state = 5;
  const auto sample = [&](int count) {
    std::vector<int64_t> tokens(shares.size());
    for (int i = 0; i < count; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      double at = static_cast<double>(state >> 11) / 9007199254740992.0;
      size_t e = 0;
      while (e + 1 < shares.size() && at >= shares[e]) at -= shares[e++];
      ++tokens[e];
    }
    return tokens;
  };
  double sum = 0, chance = 0;
  constexpr int kTimes = 400;
  for (int i = 0; i < kTimes; ++i) {
    const LayerDrift drift = routing_drift({{0, sample(800), {}}}, {{0, sample(300), {}}})[0];
    sum += drift.divergence;
    chance = drift.by_chance;
  }
  EXPECT_NEAR(sum / kTimes, chance, 0.1 * chance);
}

}  // namespace
}  // namespace vitrine::testing
