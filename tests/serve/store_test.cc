// SPDX-License-Identifier: Apache-2.0
// Prefixes that outlive their server: the same bits after a restart, and files that do not fit.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/engine/model_fixture.h"
#include "tests/serve/store_fixture.h"
#include "vitrine/audit_log.h"
#include "vitrine/serve.h"

namespace vitrine::testing {
namespace {

namespace fs = std::filesystem;

/// What a request said.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  ServeCounts counts;
  std::optional<Error> error;
};

Answer ask(Server& server, const ServeRequest& request) {
  ServedRequest served = server.submit(request);
  Answer answer;
  for (const ServeEvent& event : served) {
    if (event.kind == ServeEvent::Kind::kToken) answer.tokens.push_back(event.token);
    if (event.logprobs) answer.logprobs.push_back(*event.logprobs);
    if (event.kind != ServeEvent::Kind::kFinish) continue;
    answer.counts = event.counts;
    answer.error = event.error;
  }
  return answer;
}

void expect_same_bits(const Answer& one, const Answer& other) {
  EXPECT_FALSE(one.error) << one.error->what();
  EXPECT_FALSE(other.error) << other.error->what();
  EXPECT_EQ(one.tokens, other.tokens);
  ASSERT_EQ(one.logprobs.size(), other.logprobs.size());
  ASSERT_FALSE(one.logprobs.empty());
  for (size_t i = 0; i < one.logprobs.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(one.logprobs[i].logprob),
              std::bit_cast<uint64_t>(other.logprobs[i].logprob));
    EXPECT_EQ(one.logprobs[i].best, other.logprobs[i].best);
  }
}

class Store : public ::testing::Test {
 protected:
  ModelOptions model_options() const {
    ModelOptions options;
    options.engine.threads = 1;
    options.engine.max_context = 512;
    options.engine.max_step_tokens = 64;
    options.engine.keep_logits = true;
    options.engine.audit_mode = AuditMode::kNone;
    options.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}";
    prepare_for_serving(options, 4);
    return options;
  }
  ServerOptions stored() const {
    ServerOptions options;
    options.prefix_store.folder = folder_ / "store";
    return options;
  }
  /// A system prompt of some hundred tokens and a question behind it.
  static ServeRequest question(const std::string& text) {
    ServeRequest request;
    for (int i = 0; i < 20; ++i) {
      request.text += "Rule " + std::to_string(i) + ": tell of a girl by the sea. ";
    }
    request.text += text;
    request.max_new_tokens = 6;
    request.ignore_end_of_text = true;
    request.logprobs = 2;
    return request;
  }
  Answer cold(const ServeRequest& request) const {
    Server server(Model::open(shipped_model(), model_options()));
    return ask(server, request);
  }

  TemporaryFolder folder_;
};

TEST_F(Store, ARestartedServerGoesOnFromWhatAnotherOneComputed) {
  {
    Server server(Model::open(shipped_model(), model_options()), stored());
    ask(server, question("Who was she?"));
    EXPECT_EQ(server.telemetry().store_read, 0u);
  }
  EXPECT_FALSE(files_in(folder_ / "store").empty());
  Server server(Model::open(shipped_model(), model_options()), stored());
  const Answer same = ask(server, question("Who was she?"));
  EXPECT_GT(same.counts.cached_tokens, 200);
  expect_same_bits(cold(question("Who was she?")), same);
  const Answer other = ask(server, question("And what did she see there?"));
  EXPECT_GT(other.counts.cached_tokens, 200);
  expect_same_bits(cold(question("And what did she see there?")), other);
  const ServerTelemetry told = server.telemetry();
  EXPECT_GT(told.store_read, 0u);
  EXPECT_GT(told.store_read_tokens, 200u);
  EXPECT_EQ(told.store_refused, 0u);
  EXPECT_TRUE(server.store_notes().empty());
}

// The account of a request that goes on from a file is that of one that goes on from memory: what
// the first one's recorder said, to the bit, and marked as replayed.
TEST_F(Store, AnAccountOfAStoredPrefixIsWholeAndVerifies) {
  ModelOptions options = model_options();
  options.engine.audit_mode = AuditMode::kDeferred;
  const auto record = [&](Server& server, const std::string& path) {
    std::vector<TokenRecord> records;
    VtrLog log(path, LogHeader());
    log.on_record([&records](const TokenRecord& one) { records.push_back(one); });
    ServeRequest request = question("Who was she?");
    request.audit = &log.sink();
    const Answer answer = ask(server, request);
    log.finish("length");
    EXPECT_EQ(verify_vtr(path).seal, VtrReport::Seal::kComplete) << verify_vtr(path).problem;
    return std::tuple(answer, records, log.counts());
  };
  Server plain(Model::open(shipped_model(), options));
  const auto [cold, computed, whole] = record(plain, folder_ / "cold.vtr");
  {
    Server server(Model::open(shipped_model(), options), stored());
    ask(server, question("Who was she?"));
  }
  Server server(Model::open(shipped_model(), options), stored());
  const auto [warm, copied, counts] = record(server, folder_ / "warm.vtr");
  EXPECT_GT(warm.counts.cached_tokens, 200);
  expect_same_bits(cold, warm);
  EXPECT_EQ(counts.positions.replayed, static_cast<uint64_t>(warm.counts.cached_tokens));
  EXPECT_EQ(counts.positions.replayed + counts.positions.captured, whole.positions.captured);
  ASSERT_EQ(computed.size(), copied.size());
  for (size_t i = 0; i < computed.size(); ++i) {
    ASSERT_EQ(computed[i].position, copied[i].position);
    ASSERT_EQ(computed[i].token, copied[i].token);
    ASSERT_EQ(computed[i].layers.size(), copied[i].layers.size());
    for (size_t layer = 0; layer < computed[i].layers.size(); ++layer) {
      const LayerRecord &one = computed[i].layers[layer], &other = copied[i].layers[layer];
      EXPECT_EQ(one.residual_norm, other.residual_norm);
      ASSERT_EQ(one.routes.size(), other.routes.size());
      for (size_t slot = 0; slot < one.routes.size(); ++slot) {
        EXPECT_EQ(one.routes[slot].expert, other.routes[slot].expert);
        EXPECT_EQ(one.routes[slot].weight, other.routes[slot].weight);
      }
    }
  }
}

// The one log of all requests, too, has what a stored prefix brings along.
TEST_F(Store, ASharedLogKnowsWhereAStoredPrefixIsFrom) {
  ModelOptions options = model_options();
  options.engine.audit_mode = AuditMode::kDeferred;
  std::vector<int64_t> captured;
  for (const char* name : {"first.vtr", "second.vtr"}) {
    VtrLog log(folder_ / name, LogHeader());
    int64_t cached = 0;
    {
      ServerOptions serving = stored();
      serving.audit = &log.sink();
      Server server(Model::open(shipped_model(), options), serving);
      cached = ask(server, question("Who was she?")).counts.cached_tokens;
    }
    log.finish("length");
    EXPECT_EQ(log.counts().positions.num_lost(), 0u);
    // What was not computed of the prompt is replayed.
    EXPECT_EQ(cached > 0, std::string(name) == "second.vtr");
    EXPECT_GE(log.counts().positions.replayed, static_cast<uint64_t>(cached));
    captured.push_back(static_cast<int64_t>(log.counts().positions.captured) + cached);
    EXPECT_EQ(verify_vtr(folder_ / name).seal, VtrReport::Seal::kComplete);
  }
  EXPECT_EQ(captured[0], captured[1]);
}

// What is used again is written while nobody asks: a server that is killed loses nothing of it.
TEST_F(Store, WhatIsUsedAgainIsWrittenBeforeTheEnd) {
  Server server(Model::open(shipped_model(), model_options()), stored());
  ask(server, question("Who was she?"));
  ask(server, question("Who was he?"));
  for (int i = 0; i < 2000 && server.telemetry().store_written == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ServerOptions copy = stored();
  copy.prefix_store.folder = folder_ / "copy";
  fs::copy(folder_ / "store", folder_ / "copy");
  Server other(Model::open(shipped_model(), model_options()), copy);
  EXPECT_GT(ask(other, question("Where was that?")).counts.cached_tokens, 200);
  // The rest is written when a host says so.
  std::string more = "Who was he?";
  for (int i = 0; i < 20; ++i) more += " And who was the " + std::to_string(i) + ". of them?";
  ask(server, question(more));
  const uint64_t before = server.telemetry().store_written;
  server.store_prefixes();
  EXPECT_GT(server.telemetry().store_written, before);
  const size_t files = files_in(folder_ / "store").size();
  server.clear_cache();
  EXPECT_EQ(files_in(folder_ / "store").size(), files);
  EXPECT_EQ(server.telemetry().kept_prefixes, 0);
  // They come back from the files.
  EXPECT_GT(ask(server, question("Who was he?")).counts.cached_tokens, 200);
}

TEST_F(Store, ModelsWithNamesHaveFoldersOfTheirOwn) {
  for (int start = 0; start < 2; ++start) {
    ModelOptions other = model_options();
    other.engine.kv_codecs = {"bf16"};
    std::vector<NamedModel> models;
    models.push_back({"one", Model::open(shipped_model(), model_options())});
    models.push_back({"other", Model::open(shipped_model(), other)});
    Server server(std::move(models), stored());
    for (const char* name : {"one", "other"}) {
      ServeRequest request = question("Who was she?");
      request.model = name;
      EXPECT_EQ(ask(server, request).counts.cached_tokens > 0, start > 0) << name;
    }
    EXPECT_EQ(server.telemetry().store_refused, 0u);
  }
  EXPECT_EQ(files_in(folder_ / "store").size(), 2u);
}

TEST_F(Store, AStepperWithoutBlocksToReadIsRefused) {
  ModelOptions options = model_options();
  options.engine.keep_logits = false;
  try {
    Server server(Model::open(shipped_federation(), options), stored());
    ADD_FAILURE() << "a federation has no store";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("prefix_store"), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(folder_ / "store"));
}

}  // namespace
}  // namespace vitrine::testing
