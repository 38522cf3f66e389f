// SPDX-License-Identifier: Apache-2.0
// What goes into a .vtr comes out of it, at every level, in the bytes that it may take.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_F(VtrTest, EveryFieldComesBack) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    Rng rng(3);
    const AuditLayout layout = with_terms(
        make_layout({{2, 8},
                     {0, 0},
                     {4, 60, RouterKind::kSigmoidScores},
                     {1, 1},
                     {8, 64, RouterKind::kSoftmaxScores}},
                    detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard, rng));
    VtrOptions options;
    options.detail = detail;
    options.text = true;
    options.page_tokens = 300;
    options.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
    const auto expected = write_log(at("run.vtr"), layout, 1000, options);
    EXPECT_EQ(names(), std::vector<std::string>{"run.vtr"});

    VtrReader reader(at("run.vtr"));
    EXPECT_EQ(reader.header().log.model_path, some_header().model_path);
    EXPECT_EQ(reader.header().log.seed, some_header().seed);
    EXPECT_EQ(reader.header().log.engine, some_header().engine);
    EXPECT_EQ(reader.header().log.sampler, some_header().sampler);
    EXPECT_EQ(reader.header().log.hashes, some_header().hashes);
    EXPECT_EQ(reader.header().detail, detail);
    EXPECT_EQ(reader.header().trace_id, options.trace_id);
    EXPECT_NE(reader.header().engine_build.find("blake2b-256 "), std::string::npos);
    ASSERT_EQ(reader.header().layers.size(), 5u);
    EXPECT_EQ(reader.header().layers[2].num_experts, 60);
    EXPECT_EQ(reader.header().layers[2].router, RouterKind::kSigmoidScores);
    EXPECT_EQ(reader.header().layers[3].router, RouterKind::kPlain);
    EXPECT_EQ(reader.header().layers[4].router, RouterKind::kSoftmaxScores);
    EXPECT_EQ(reader.header().terms, layout.terms);
    const auto pages = read_pages(at("run.vtr"));
    EXPECT_EQ(pages.size(), 4u) << "300 records a page";
    size_t row = 0;
    for (const VtrPage& page : pages) {
      ASSERT_EQ(page.records.size(), page.text.size());
      for (size_t i = 0; i < page.records.size(); ++i, ++row) {
        ASSERT_LT(row, expected.size());
        expect_record(page.records[i], expected[row], detail);
        EXPECT_EQ(page.text[i], piece(expected[row].token));
      }
    }
    EXPECT_EQ(row, expected.size());
    const VtrReport report = verify_vtr(at("run.vtr"));
    EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
    EXPECT_EQ(report.counts.tokens, 1000u);
    EXPECT_EQ(report.counts.positions.captured, 1000u);
    EXPECT_EQ(report.counts.positions.total(), 1000u);
    EXPECT_EQ(report.counts.sequences, 1u);
    EXPECT_EQ(report.stop_reason, "length");
    EXPECT_FALSE(report.is_key_given);
  }
}

TEST_F(VtrTest, DigestsAreOfUnroundedValues) {
  const auto digest_of_all = [this](LogDetail detail, AuditLevel level) {
    VtrOptions options;
    options.detail = detail;
    Rng rng(5);
    // The same values whatever the layout: only layers without gaps and probabilities differ.
    write_log(at("d.vtr"), four_layers(level), 1, options, 5);
    return read_pages(at("d.vtr")).at(0).digests.at(0);
  };
  const uint64_t standard = digest_of_all(LogDetail::kStandard, AuditLevel::kFull);
  EXPECT_EQ(digest_of_all(LogDetail::kFull, AuditLevel::kFull), standard);
  // One value changed by less than the rounding.
  Rng rng(5);
  const AuditLayout layout = four_layers();
  BuiltPass one = build_step(layout, 0, 1, 0, 1, rng);
  std::vector<uint64_t> digests;
  std::vector<std::vector<LayerMark>> marks;
  for (const float norm : {1.0f, std::nextafter(1.0f, 2.0f)}) {
    const size_t words = one.bytes.size() - 4 * static_cast<size_t>(layout.token_words) -
                         (one.bytes.size() - sizeof(AuditPassHeader) - 24 -
                          4 * layout.pass_words(one.expected[0].has_prediction ? 1 : 0, 1));
    put(one.bytes, words + 4 * static_cast<size_t>(layout.layers[0].residual_norm), norm);
    VtrLog log(at("n.vtr"), some_header(), overwriting());
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    send(log.sink(), one.bytes);
    log.finish("length");
    const auto pages = read_pages(at("n.vtr"));
    EXPECT_EQ(pages[0].records[0].layers[0].residual_norm, 1.0f);
    digests.push_back(pages[0].digests[0]);
    marks.push_back(pages[0].layer_marks.at(0));
  }
  EXPECT_NE(digests[0], digests[1]);
  ASSERT_EQ(marks[0].size(), 4u);
  EXPECT_NE(marks[0][0].residual_norm, marks[1][0].residual_norm);
  EXPECT_EQ(marks[0][0].routes, marks[1][0].routes);
  for (size_t layer = 1; layer < 4; ++layer) {
    EXPECT_EQ(marks[0][layer].residual_norm, marks[1][layer].residual_norm);
    EXPECT_EQ(marks[0][layer].routes, marks[1][layer].routes);
  }
}

/// The numbers are those of docs/vtr-format.md's rule, in Python.
TEST_F(VtrTest, MarksAreOfUnroundedValues) {
  TokenRecord record;
  record.layers.resize(2);
  record.layers[0].residual_norm = 1.0f;
  record.layers[0].routes = {{3, 0.75f}, {7, 0.25f}};
  record.layers[1].residual_norm = 2.5f;
  const std::vector<LayerMark> marks = layer_marks(record);
  ASSERT_EQ(marks.size(), 2u);
  EXPECT_EQ(marks[0].residual_norm, 131);
  EXPECT_EQ(marks[0].routes, 135);
  EXPECT_EQ(marks[1].residual_norm, 151);
  EXPECT_EQ(marks[1].routes, 0) << "a dense layer";
  record.layers[1].residual_norm = std::numeric_limits<float>::quiet_NaN();
  const uint8_t of_nan = layer_marks(record)[1].residual_norm;
  record.layers[1].residual_norm = -record.layers[1].residual_norm;
  EXPECT_EQ(layer_marks(record)[1].residual_norm, of_nan) << "one NaN";
  // One change of a bit in 256 goes unseen, more or less.
  Rng rng(11);
  size_t changes = 0, unseen = 0;
  for (const TokenRecord& built : build_pass(four_layers(), 0, 40, rng).expected) {
    const std::vector<LayerMark> before = layer_marks(built);
    for (size_t layer = 0; layer < 4; ++layer) {
      for (int bit = 0; bit < 32; ++bit) {
        TokenRecord other = built;
        float& value =
            bit % 2 == 0 ? other.layers[layer].residual_norm : other.layers[layer].routes[1].weight;
        value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ uint32_t{1} << bit);
        const std::vector<LayerMark> after = layer_marks(other);
        const bool is_norm_seen = after[layer].residual_norm != before[layer].residual_norm;
        const bool is_route_seen = after[layer].routes != before[layer].routes;
        EXPECT_FALSE(bit % 2 == 0 ? is_route_seen : is_norm_seen);
        ++changes;
        unseen += is_norm_seen || is_route_seen ? 0 : 1;
      }
    }
  }
  EXPECT_LT(unseen, changes / 64);
  // A log of level standard keeps them; one of level full has the values.
  const auto expected = write_log(at("standard.vtr"), four_layers(), 50);
  const auto pages = read_pages(at("standard.vtr"));
  ASSERT_EQ(pages.at(0).layer_marks.size(), 50u);
  for (size_t i = 0; i < 50; ++i) {
    const std::vector<LayerMark> want = layer_marks(expected[i]);
    ASSERT_EQ(pages[0].layer_marks[i].size(), want.size());
    EXPECT_EQ(std::memcmp(pages[0].layer_marks[i].data(), want.data(), 2 * want.size()), 0);
  }
  write_log(at("full.vtr"), four_layers(AuditLevel::kFull), 5, {.detail = LogDetail::kFull});
  EXPECT_TRUE(read_pages(at("full.vtr")).at(0).layer_marks.empty());
}

TEST_F(VtrTest, TheLogitsDigestIsInTheRecordsDigest) {
  Rng rng(6);
  BuiltPass built = build_pass(four_layers(), 0, 30, rng);
  size_t checked = 0;
  for (TokenRecord record : built.expected) {
    const uint64_t digest = record_digest(record);
    for (const uint64_t bit : {uint64_t{1}, uint64_t{1} << 31, uint64_t{1} << 63}) {
      record.prediction.logits_digest ^= bit;
      // Where nothing was predicted there is no row.
      EXPECT_EQ(record_digest(record) == digest, !record.has_prediction);
      checked += record.has_prediction ? 1 : 0;
    }
  }
  EXPECT_GT(checked, 10u);
}

/// Level full keeps all that a digest is made of.
TEST_F(VtrTest, AFullLogsRecordsHaveTheirDigests) {
  VtrOptions options;
  options.detail = LogDetail::kFull;
  write_log(at("full.vtr"), four_layers(AuditLevel::kFull), 200, options, 5);
  size_t checked = 0;
  for (const VtrPage& page : read_pages(at("full.vtr"))) {
    for (size_t i = 0; i < page.records.size(); ++i, ++checked) {
      EXPECT_EQ(record_digest(page.records[i]), page.digests[i]);
    }
  }
  EXPECT_EQ(checked, 200u);
}

/// At most 2.5 bytes a layer and expert slot, 2 bytes a layer and 96 bytes a token, seal included,
/// in pages of 1,000 tokens: with random values, which no compressor can help.
TEST_F(VtrTest, BytesPerTokenAreBounded) {
  struct Shape {
    const char* name;
    int32_t layers, experts, top_k, vocabulary;
  };
  for (const Shape& shape :
       {Shape{"fractalmoe", 4, 8, 2, 8192}, Shape{"olmoe", 16, 64, 8, 50304}}) {
    const AuditLayout layout = layout_of(shape.layers, shape.experts, shape.top_k);
    LogHeader header = some_header();
    header.vocab_size = shape.vocabulary;
    constexpr int32_t kTokens = 4000;
    VtrOptions options;
    options.seal = SealKey::generate();
    options.page_tokens = 1000;
    options.page_seconds = 1000;
    VtrLog log(at("run.vtr"), header, overwriting(options));
    log.sink().open(layout, audit_record_bytes(layout, 1, 1));
    Rng rng(2);
    int32_t position = 0;
    while (position < kTokens) {
      // Decoding: every token has a prediction.
      BuiltPass built = build_step(layout, 0, 1, position, 1, rng, shape.vocabulary);
      if (!built.expected[0].has_prediction) continue;
      send(log.sink(), built.bytes);
      ++position;
    }
    log.finish("length");
    EXPECT_EQ(log.counts().pages, 4u);
    const double bytes = static_cast<double>(fs::file_size(at("run.vtr"))) / kTokens;
    const double budget = 2.5 * shape.layers * shape.top_k + 2.0 * shape.layers + 96;
    std::printf("%s: %.1f bytes a token, at most %.1f\n", shape.name, bytes, budget);
    RecordProperty(std::string("bytes_per_token_") + shape.name, std::to_string(bytes));
    EXPECT_LE(bytes, budget) << shape.name;
    EXPECT_EQ(log.bytes_written(), fs::file_size(at("run.vtr")));
    EXPECT_EQ(verify_vtr(at("run.vtr")).seal, VtrReport::Seal::kComplete);
  }
}

TEST_F(VtrTest, CountersKeepNothingOfAToken) {
  const AuditLayout layout = four_layers();
  VtrOptions options;
  options.detail = LogDetail::kCounters;
  options.page_tokens = 100;
  const auto expected = write_log(at("run.vtr"), layout, 1000, options);
  std::vector<std::vector<uint64_t>> uses(4, std::vector<uint64_t>(8, 0)), want = uses;
  for (const VtrPage& page : read_pages(at("run.vtr"))) {
    EXPECT_TRUE(page.records.empty());
    if (page.expert_uses.empty()) continue;  // held back for a later page
    EXPECT_GE(page.expert_use_tokens, 64u) << "no token can be told from a count";
    for (size_t layer = 0; layer < 4; ++layer) {
      for (size_t expert = 0; expert < 8; ++expert) {
        uses[layer][expert] += page.expert_uses[layer][expert];
      }
    }
  }
  for (const TokenRecord& record : expected) {
    for (size_t layer = 0; layer < 4; ++layer) {
      for (const RouteRecord& route : record.layers[layer].routes) {
        ++want[layer][static_cast<size_t>(route.expert)];
      }
    }
  }
  EXPECT_EQ(uses, want);
  const VtrReport report = verify_vtr(at("run.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  EXPECT_EQ(report.counts.positions.counted, 1000u);
  EXPECT_EQ(report.counts.positions.total(), 1000u);
  EXPECT_LT(fs::file_size(at("run.vtr")), 20000u);
  VtrReader reader(at("run.vtr"));
  EXPECT_THROW(export_json(reader, [](std::string_view) {}), Error);
}

/// The JSON that is exported from a full log is the JSON log, byte for byte.
TEST_F(VtrTest, ExportIsTheJsonLog) {
  const AuditLayout layout = with_hidden_states(four_layers(AuditLevel::kFull), {0, 4}, 9);
  VtrOptions options;
  options.detail = LogDetail::kFull;
  write_log(at("run.vtr"), layout, 500, options, 9);
  Rng rng(9);
  JsonLog log(at("log.json"), some_header(), told_piece);
  log.sink().open(layout, audit_record_bytes(layout, 7, 7));
  send_run(log.sink(), layout, 500, rng);
  log.finish("length");
  VtrReader reader(at("run.vtr"));
  std::string text;
  export_json(
      reader, [&](std::string_view part) { text += part; }, told_piece);
  // The two logs differ in when each began.
  const auto less_start = [](const std::string& log) {
    const size_t begin = log.find("\"started\":"), end = log.find("},\n", begin);
    EXPECT_NE(end, std::string::npos);
    return log.substr(0, begin) + log.substr(end);
  };
  EXPECT_EQ(less_start(text), less_start(read(at("log.json"))));
}

TEST_F(VtrTest, PagesCloseByAge) {
  VtrOptions options;
  options.page_seconds = 0.02;
  const AuditLayout layout = four_layers();
  VtrLog log(at("run.vtr"), some_header(), overwriting(options));
  log.sink().open(layout, audit_record_bytes(layout, 7, 7));
  Rng rng(1);
  for (int32_t i = 0; i < 3; ++i) {
    send(log.sink(), build_step(layout, 0, 1, i, 1, rng).bytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    // Whole pages are in the file while the log goes on: what a crash would leave.
    EXPECT_EQ(read_records(at("run.vtr")).size(), static_cast<size_t>(i + 1));
    const VtrReport report = verify_vtr(at("run.vtr"));
    EXPECT_EQ(report.seal, VtrReport::Seal::kOpen) << report.problem;
  }
  log.finish("length");
  EXPECT_EQ(verify_vtr(at("run.vtr")).seal, VtrReport::Seal::kComplete);
}

TEST_F(VtrTest, ACutLeavesTheWholePages) {
  VtrOptions options;
  options.page_tokens = 100;
  options.durable = true;
  write_log(at("run.vtr"), four_layers(), 400, options);
  const auto pages = read_pages(at("run.vtr"));
  ASSERT_EQ(pages.size(), 5u) << "the last holds the release";
  const std::string whole = read(at("run.vtr"));
  for (const uint64_t cut : {pages[2].offset + pages[2].bytes / 2, pages[3].offset}) {
    write(at("cut.vtr"), whole.substr(0, cut));
    EXPECT_EQ(read_records(at("cut.vtr")).size(), cut == pages[3].offset ? 300u : 200u);
    const VtrReport report = verify_vtr(at("cut.vtr"));
    EXPECT_EQ(report.seal, VtrReport::Seal::kOpen) << report.problem;
    EXPECT_EQ(report.torn_bytes, cut == pages[3].offset ? 0u : pages[2].bytes / 2);
  }
}

TEST_F(VtrTest, AnOlderLogIsReplacedByAPage) {
  write(at("run.vtr"), "an older log");
  {
    // A run that is refused before its first pass.
    VtrLog log(at("run.vtr"), some_header(), overwriting());
    log.sink().open(four_layers(), 4096);
    log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
    log.sink().on_event({AuditEvent::Kind::kReleased, 1, 0, 0, 0});
  }
  EXPECT_EQ(read(at("run.vtr")), "an older log");
  EXPECT_EQ(names(), std::vector<std::string>{"run.vtr"});
  VtrLog log(at("run.vtr"), some_header(), overwriting());
  log.sink().open(four_layers(), 4096);
  EXPECT_EQ(read(at("run.vtr")), "an older log");
  log.finish("length");
  EXPECT_EQ(VtrReader(at("run.vtr")).header().log.isa, "avx512");
  const VtrReport report = verify_vtr(at("run.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  EXPECT_EQ(report.counts.positions.total(), 0u);
}

TEST_F(VtrTest, RefusesWhatItCannotDo) {
  EXPECT_THROW(VtrLog(at("run.json"), some_header()), Error);
  EXPECT_THROW(VtrLog(at("missing/run.vtr"), some_header()), Error);
  VtrOptions options;
  options.page_tokens = 5000;
  EXPECT_THROW(VtrLog(at("run.vtr"), some_header(), options), Error);
  options = {.text = true};
  EXPECT_THROW(VtrLog(at("run.vtr"), some_header(), options), Error);
  options = {.detail = LogDetail::kFull};
  {
    VtrLog log(at("run.vtr"), some_header(), overwriting(options));
    EXPECT_THROW(log.sink().open(four_layers(), 4096), Error) << "no router probabilities";
  }
  {
    VtrLog log(at("run.vtr"), some_header(), overwriting());
    EXPECT_THROW(log.finish("length"), Error) << "never opened";
  }
  LogHeader header = some_header();
  header.model_path.assign(5000, 'x');
  VtrLog log(at("run.vtr"), header, overwriting());
  EXPECT_THROW(log.sink().open(four_layers(), 4096), Error);
  EXPECT_EQ(names(), std::vector<std::string>{});
}

}  // namespace
}  // namespace vitrine
