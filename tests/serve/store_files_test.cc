// SPDX-License-Identifier: Apache-2.0
// Files of a prefix store that do not fit, are damaged or have no room: each is left out with a
// line that says why, and the answer is the right one.
#include <sys/stat.h>

#include <regex>

#include "serve/prefix_file.h"
#include "tests/engine/edited_model.h"
#include "tests/serve/store_fixture.h"

namespace vitrine::testing {
namespace {

namespace fs = std::filesystem;

class StoreFiles : public ::testing::Test {
 protected:
  StoreFiles() : engine_(Engine::load(oracle_folder("qwen3_moe"), store_options())) {
    asked_.prompt = prompt_ids(100, engine_->summary().vocab_size, 3);
    expected_ = answer_alone(*engine_, {asked_});
  }
  PrefixStoreOptions options(bool is_secret = false) const {
    PrefixStoreOptions store{.folder = folder_ / "store"};
    if (is_secret) store.key = [](const std::string&) { return std::string(32, 'k'); };
    return store;
  }
  /// A server that is started on the folder as it is, which it leaves so.
  StoredRun restart(const PrefixStoreOptions& store) {
    StoredRun run = run_stored(*engine_, store, {asked_}, /*stores=*/false);
    expect_same_answers(expected_, run.answers);
    return run;
  }
  void expect_refused(const StoredRun& run, const std::string& why) const {
    EXPECT_EQ(run.cached(), 0);
    EXPECT_EQ(run.telemetry.store_read, 0u);
    EXPECT_EQ(run.telemetry.store_refused, 1u);
    ASSERT_EQ(run.notes.size(), 1u);
    EXPECT_TRUE(std::regex_search(run.notes[0], std::regex(why))) << run.notes[0];
    EXPECT_EQ(run.notes[0].find('\n'), std::string::npos);
    EXPECT_NE(run.notes[0].find(folder_.path()), std::string::npos) << "it names the file";
  }

  TemporaryFolder folder_;
  std::unique_ptr<Engine> engine_;
  AskedJob asked_;
  std::vector<GenerateResult> expected_;
};

TEST_F(StoreFiles, AFlippedBitIsFoundWhereverItIs) {
  for (const bool is_secret : {false, true}) {
    fs::remove_all(options().folder);
    run_stored(*engine_, options(is_secret), {asked_});
    const std::vector<fs::path> files = files_in(options().folder);
    ASSERT_EQ(files.size(), 1u);
    const std::string good = bytes_of_file(files[0]);
    const size_t record = good.find(R"("})", 32) + 2;  // the head's end
    ASSERT_LT(record, good.size());
    EXPECT_EQ(good.find("\"tokens\"") == std::string::npos, is_secret);
    std::vector<size_t> places = {record,           record + 9,      record + 60,
                                  record + 200,     good.size() / 2, good.size() - 33,
                                  good.size() - 32, good.size() - 1};
    for (size_t i = 0; i < record; i += i < 34 ? 1 : 37) places.push_back(i);
    for (size_t i = record + 300; i < good.size(); i += good.size() / 12) places.push_back(i);
    for (const size_t place : places) {
      SCOPED_TRACE((is_secret ? "encrypted, byte " : "byte ") + std::to_string(place));
      std::string bad = good;
      bad[place] = static_cast<char>(bad[place] ^ (1 << place % 8));
      write_bytes(files[0], bad);
      expect_refused(restart(options(is_secret)),
                     "expected|is no stored prefix|is cut off|its beginning says");
    }
    write_bytes(files[0], good);
    EXPECT_GT(restart(options(is_secret)).cached(), 90);
  }
}

TEST_F(StoreFiles, WhatIsCutOffOrLongerIsLeftOut) {
  run_stored(*engine_, options(), {asked_});
  const fs::path file = files_in(options().folder).at(0);
  const std::string good = bytes_of_file(file);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{31}, size_t{32}, size_t{200},
                            good.size() / 2, good.size() - 32, good.size() - 1}) {
    SCOPED_TRACE(size);
    write_bytes(file, good.substr(0, size));
    expect_refused(restart(options()), "cut off");
  }
  write_bytes(file, good + "x");
  expect_refused(restart(options()), "beginning says");
  write_bytes(file, std::string(5000, '\xff'));
  expect_refused(restart(options()), "is no stored prefix");
}

TEST_F(StoreFiles, FilesOfAnotherModelOrCodecAreLeftOut) {
  EngineOptions options = store_options();
  const EditedModel edited("qwen3_moe", {}, [](EditedModel::Tensors& tensors) {
    tensors.at("model.norm.weight").bytes[0] ^= std::byte{1};
  });
  EngineOptions other_codec = options, other_rope = options, other_block = options;
  other_codec.kv_codecs = {"bf16"};
  other_rope.rope_frequencies = DType::kBF16;
  other_block.kv_block_size = 64;
  const std::string path = oracle_folder("qwen3_moe");
  const std::tuple<std::string, EngineOptions, std::string> cases[] = {
      {edited.path(), options, "field 'model' is '[0-9a-f]{64}'; expected '[0-9a-f]{64}'"},
      {oracle_folder("qwen3"), options, "field 'architecture' is '.*'; expected 'qwen3_moe'"},
      {path, other_codec, "field 'kv_codecs' is 'bf16 1'; expected 'f32 1'"},
      {path, other_rope, "field 'rope_frequencies'"},
      {path, other_block, "field 'block_size' is '64'; expected '16'"}};
  for (const auto& [model, of_engine, why] : cases) {
    SCOPED_TRACE(why);
    fs::remove_all(this->options().folder);
    auto other = Engine::load(model, of_engine);
    run_stored(*other, this->options(), {asked_});
    ASSERT_EQ(files_in(this->options().folder).size(), 1u);
    expect_refused(restart(this->options()), why);
  }
}

// A file whose hashes fit and whose numbers do not: somebody made it.
TEST_F(StoreFiles, ForgedNumbersAreLeftOut) {
  serve::StoreFit fit(*engine_, false);
  run_stored(*engine_, options(), {asked_});
  const fs::path file = files_in(options().folder).at(0);
  const std::string good = bytes_of_file(file);
  const std::string scope = file.filename().string().substr(0, 32);
  const serve::PrefixFiles files(fit.fields(-1), scope, std::nullopt);
  const serve::StoredRecord record = files.read_record(file);
  const uint64_t bytes = engine::image_bytes(fit.sizes(), record.shape);
  const serve::StoredContent content = files.read_content(file, record, bytes);
  using Forge = std::function<void(serve::StoredRecord&)>;
  const std::pair<Forge, std::string> cases[] = {
      {[](auto& one) { one.shape.history[90] = 1 << 30; }, "ids or bytes do not fit"},
      {[](auto& one) { one.shape.history[90] = -2; }, "ids or bytes do not fit"},
      {[](auto& one) { one.shape.first_block = 1; }, "contradicts itself"},
      {[](auto& one) { one.shape.first_block = -1; }, "contradicts itself"},
      {[](auto& one) { one.begin = 32; }, "contradicts itself"},
      {[](auto& one) {
         one.parent = "../x";
         one.begin = 32;
       },
       "contradicts itself"},
      {[](auto& one) { one.token_words = 1 << 20; }, "holds [0-9]+ bytes; expected"},
      {[](auto& one) { one.shape.state_length = 1000; }, "more blocks than tokens"},
      {[](auto& one) { one.shape.state_length = 3; }, "keeps no states"},
      {[](auto& one) {
         one.shape.holds_window = {0, 0};
       },
       "other windows"},
      {[](auto& one) { one.shape.window_points = {500}; }, "other windows"},
      {[](auto& one) { one.shape.history.clear(); }, "contradicts itself"},
      {[](auto& one) { one.shape.history.resize(60); }, "holds [0-9]+ bytes; expected"}};
  for (const auto& [forge, why] : cases) {
    SCOPED_TRACE(why);
    serve::StoredRecord forged = record;
    forge(forged);
    files.write(file, forged, content.bytes, {});
    const StoredRun run = restart(options());
    EXPECT_EQ(run.cached(), 0);
    ASSERT_EQ(run.notes.size(), 1u);
    EXPECT_TRUE(std::regex_search(run.notes[0], std::regex(why))) << run.notes[0];
  }
  // A parent that there is not, and one that is the file itself.
  for (const std::string& parent : {std::string("nobody.prefix"), file.filename().string()}) {
    serve::StoredRecord forged = record;
    forged.begin = 32;
    forged.shape.first_block = 2;
    forged.parent = parent;
    files.write(file, forged, std::span(content.bytes).subspan(2 * fit.sizes().block_bytes), {});
    EXPECT_EQ(restart(options()).cached(), 0);
  }
  write_bytes(file, good);
  EXPECT_GT(restart(options()).cached(), 90);
}

TEST_F(StoreFiles, AFileIsItsOwnersAloneFromTheBeginning) {
  serve::StoreFit fit(*engine_, false);
  run_stored(*engine_, options(), {asked_});
  const fs::path file = files_in(options().folder).at(0);
  const serve::PrefixFiles files(fit.fields(-1), file.filename().string().substr(0, 32),
                                 std::nullopt);
  const serve::StoredRecord record = files.read_record(file);
  const serve::StoredContent content =
      files.read_content(file, record, engine::image_bytes(fit.sizes(), record.shape));
  const fs::path other = folder_ / "other";
  const mode_t mask = ::umask(0);
  files.write(other, record, content.bytes, content.words);
  ::umask(mask);
  EXPECT_EQ(fs::status(other).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(StoreFiles, AFolderThatCannotBeUsedIsNoted) {
  PrefixStoreOptions store = options();
  write_bytes(folder_ / "file", "no folder");
  for (const std::string& folder : {folder_ / "file", folder_ / "file/within"}) {
    store.folder = folder;
    const StoredRun run = run_stored(*engine_, store, {asked_});
    expect_same_answers(expected_, run.answers);
    ASSERT_FALSE(run.notes.empty());
    EXPECT_NE(run.notes[0].find(folder + ": cannot be used to keep prefixes"), std::string::npos)
        << run.notes[0];
    EXPECT_EQ(run.telemetry.store_written, 0u);
  }
}

TEST_F(StoreFiles, BytesAreBounded) {
  PrefixStoreOptions store = options();
  std::vector<AskedJob> asked;
  for (int i = 0; i < 6; ++i) {
    asked.push_back(asked_);
    asked.back().prompt =
        prompt_ids(100, engine_->summary().vocab_size, 20u + static_cast<uint32_t>(i));
  }
  run_stored(*engine_, store, {asked_});
  const uint64_t one = fs::file_size(files_in(store.folder).at(0));
  store.max_bytes = 3 * one + one / 2;
  // An earlier server's files give way, and what this one wrote stays, until there is no more room.
  const StoredRun full = run_stored(*engine_, store, asked);
  EXPECT_EQ(full.telemetry.store_written, 3u);
  EXPECT_EQ(full.telemetry.store_removed, 1u);
  EXPECT_LE(full.telemetry.store_bytes, store.max_bytes);
  EXPECT_EQ(files_in(store.folder).size(), 3u);
  // Who was used least recently goes first.
  fs::remove_all(store.folder);
  run_stored(*engine_, store, {asked_, asked[0], asked[1]});
  const auto hour = std::chrono::hours(1);
  for (const fs::path& file : files_in(store.folder)) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - hour);
  }
  EXPECT_GT(restart(store).cached(), 90);
  const StoredRun others = run_stored(*engine_, store, {asked[5], asked[4]});
  EXPECT_EQ(others.telemetry.store_written, 2u);
  EXPECT_EQ(others.telemetry.store_removed, 2u);
  EXPECT_EQ(files_in(store.folder).size(), 3u);
  EXPECT_GT(restart(store).cached(), 90);
  store.max_bytes = 10;
  const StoredRun none = run_stored(*engine_, store, {asked[3]});
  EXPECT_EQ(none.telemetry.store_written, 0u);
}

TEST_F(StoreFiles, AKeyIsATenantsOwn) {
  PrefixStoreOptions store = options();
  int calls = 0;
  store.key = [&calls](const std::string& tenant) {
    ++calls;
    if (tenant == "broken") throw std::runtime_error("the vault is shut");
    return tenant == "plain" ? std::string() : "key of " + tenant;
  };
  AskedJob broken = asked_, plain = asked_, secret = asked_;
  broken.tenant = "broken";
  plain.tenant = "plain";
  secret.tenant = "secret";
  for (int start = 0; start < 2; ++start) {
    const StoredRun run = run_stored(*engine_, store, {broken, plain, secret});
    for (const AnsweredJob& answer : run.answers) {
      EXPECT_EQ(answer.result.tokens, expected_[0].tokens);
    }
    EXPECT_EQ(run.answers[0].cached_tokens, 0);
    EXPECT_EQ(run.answers[1].cached_tokens > 0, start > 0);
    EXPECT_EQ(run.answers[2].cached_tokens > 0, start > 0);
    ASSERT_EQ(run.notes.size(), 1u);
    EXPECT_NE(run.notes[0].find("the vault is shut"), std::string::npos) << run.notes[0];
  }
  EXPECT_EQ(calls, 6);
  int readable = 0;
  for (const fs::path& file : files_in(store.folder)) {
    const std::string bytes = bytes_of_file(file);
    readable += bytes.find("\"tokens\"") != std::string::npos ? 1 : 0;
    EXPECT_EQ(bytes.find("secret"), std::string::npos);
  }
  EXPECT_EQ(readable, 1);
  store.key = [](const std::string&) { return std::string("another key"); };
  EXPECT_EQ(run_stored(*engine_, store, {secret}).cached(), 0);
  store.key = nullptr;
  EXPECT_EQ(run_stored(*engine_, store, {plain}).cached() > 0, true);
}

}  // namespace
}  // namespace vitrine::testing
