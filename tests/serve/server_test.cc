// SPDX-License-Identifier: Apache-2.0
// The server as a host has it: requests from several threads, events, ends of all kinds.
#include "vitrine/serve.h"

#include <atomic>
#include <thread>

#include "tests/engine/model_fixture.h"
#include "vitrine/audit_log.h"

namespace vitrine::testing {
namespace {

using Kind = ServeEvent::Kind;
using namespace std::chrono_literals;

constexpr const char* kTemplate =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

ModelOptions server_model(int running = 6) {
  ModelOptions options;
  options.engine.threads = 1;
  options.engine.max_context = 256;
  options.engine.max_step_tokens = 64;
  options.engine.keep_logits = true;
  options.chat_template = kTemplate;
  prepare_for_serving(options, running);
  return options;
}

/// All that a request told.
struct Told {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::string content;
  std::optional<ServeEvent> last;
};

Told read_all(ServedRequest& request) {
  Told told;
  for (const ServeEvent& event : request) {
    if (event.kind == Kind::kRestart) told = {};
    told.text += event.text;
    for (const ChatDelta& delta : event.deltas) {
      if (delta.part == ChatPart::kContent) told.content += delta.text;
    }
    if (event.kind == Kind::kToken) told.tokens.push_back(event.token);
    if (event.logprobs) told.logprobs.push_back(*event.logprobs);
    if (event.kind == Kind::kFinish) told.last = event;
  }
  return told;
}

ServeRequest story(int tokens, uint64_t seed = 0) {
  ServeRequest request;
  request.text = "Once upon a time, there was";
  request.max_new_tokens = tokens;
  request.sampler.temperature = seed == 0 ? 0.0F : 0.9F;
  request.sampler.seed = seed;
  request.ignore_end_of_text = true;
  return request;
}

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() : alone_(Model::open(shipped_model(), server_model())) {}

  Server server(const ServerOptions& options = {}, int running = 6) const {
    return Server(Model::open(shipped_model(), server_model(running)), options);
  }
  GenerateResult expected(const ServeRequest& request) {
    GenerateOptions options;
    options.max_new_tokens = request.max_new_tokens;
    options.sampler = request.sampler;
    options.ignore_end_of_text = request.ignore_end_of_text;
    options.logprobs = request.logprobs;
    options.branch = request.branch;
    return generate(alone_, alone_.tokenizer().encode(request.text), options);
  }

  Model alone_;
};

TEST_F(ServerTest, AnswersAsGenerateDoes) {
  Server server = this->server();
  ServeRequest request = story(24);
  request.logprobs = 3;
  ServedRequest served = server.submit(request);
  const Told told = read_all(served);
  const GenerateResult alone = expected(request);
  EXPECT_EQ(told.tokens, alone.tokens);
  EXPECT_EQ(told.text, alone_.tokenizer().decode(alone.tokens));
  ASSERT_EQ(told.logprobs.size(), alone.logprobs.size());
  for (size_t i = 0; i < told.logprobs.size(); ++i) {
    EXPECT_EQ(told.logprobs[i].logprob, alone.logprobs[i].logprob);
    EXPECT_EQ(told.logprobs[i].best, alone.logprobs[i].best);
  }
  ASSERT_TRUE(told.last);
  EXPECT_EQ(told.last->reason, StopReason::kLength);
  EXPECT_EQ(told.last->counts.new_tokens, 24);
  EXPECT_GT(told.last->counts.first_token_seconds, 0);
  EXPECT_GE(told.last->counts.total_seconds, told.last->counts.first_token_seconds);
  EXPECT_TRUE(served.is_finished());
  EXPECT_FALSE(served.next());
}

TEST_F(ServerTest, ManyThreadsSubmit) {
  Server server = this->server();
  std::vector<std::vector<int32_t>> alone, found(12);
  for (uint64_t i = 0; i < 12; ++i) alone.push_back(expected(story(10, i)).tokens);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      ServedRequest request = server.submit(story(10, i));
      found[i] = read_all(request).tokens;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(alone, found);
  const ServerTelemetry told = server.telemetry();
  EXPECT_EQ(told.submitted, 12u);
  EXPECT_EQ(told.finished, 12u);
  EXPECT_EQ(told.new_tokens, 120u);
  EXPECT_EQ(told.first_token_seconds.count, 12u);
  EXPECT_EQ(told.gap_seconds.count, 12u * 9);
}

TEST_F(ServerTest, AConversationHasParts) {
  Server server = this->server();
  ServeRequest request;
  request.messages = {{"user", "Tell me a story."}};
  request.max_new_tokens = 12;
  ServedRequest served = server.submit(request);
  const Told told = read_all(served);
  ASSERT_TRUE(told.last && told.last->answer);
  EXPECT_EQ(told.content, told.last->answer->content);
  EXPECT_FALSE(told.content.empty());
}

TEST_F(ServerTest, ATextEndsAnAnswer) {
  Server server = this->server();
  ServeRequest request = story(60);
  ServedRequest whole = server.submit(request);
  const std::string text = read_all(whole).text;
  ASSERT_GT(text.size(), 60u);
  request.stop = {text.substr(50, 4)};
  const size_t at = text.find(request.stop[0]);
  ServedRequest served = server.submit(request);
  const Told told = read_all(served);
  EXPECT_EQ(told.text, text.substr(0, at));
  EXPECT_TRUE(told.last->is_stop_string);
  EXPECT_EQ(told.last->stop, request.stop[0]);
}

TEST_F(ServerTest, AnAnswerGoesOnBehindItsStart) {
  Server server = this->server();
  ServeRequest request;
  request.messages = {{"user", "Tell me a story."}};
  request.answer_start = "Once upon";
  std::vector<int32_t> whole = server.encode(request);
  request.answer_start.clear();
  const std::vector<int32_t> bare = server.encode(request);
  ASSERT_GT(whole.size(), bare.size());
  whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bare.size()) - 1);
  EXPECT_TRUE(server.model().tokenizer().decode(whole).ends_with("Once upon"));
}

TEST_F(ServerTest, AnAnswerIsHeldToWhatItIsAskedFor) {
  Server server = this->server();
  const std::pair<ServeConstraint, std::string> cases[] = {
      {{.kind = ServeConstraint::Kind::kRegex, .text = "[0-9]{3}-[a-z]{2}"}, ""},
      {{.kind = ServeConstraint::Kind::kChoices, .choices = {"yes", "no"}}, ""},
      {{.kind = ServeConstraint::Kind::kJsonSchema,
        .text = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],)"
                R"("additionalProperties":false})"},
       ""},
      {{.kind = ServeConstraint::Kind::kRegex, .text = "[0-9"}, "character class"},
      {{.kind = ServeConstraint::Kind::kOwn}, "constraint.make"},
      {{.kind = ServeConstraint::Kind::kOwn,
        .make = [](const TokenTable&) -> std::unique_ptr<Constraint> {
          throw std::runtime_error("no grammar today");
        }},
       "no grammar today"}};
  for (const auto& [constraint, problem] : cases) {
    ServeRequest request = story(40);
    request.ignore_end_of_text = false;
    request.constraint = constraint;
    ServedRequest served = server.submit(request);
    const Told told = read_all(served);
    ASSERT_TRUE(told.last);
    EXPECT_EQ(told.last->error.has_value(), !problem.empty());
    if (told.last->error) {
      EXPECT_NE(std::string(told.last->error->what()).find(problem), std::string::npos)
          << told.last->error->what();
    } else {
      EXPECT_FALSE(told.text.empty());
      EXPECT_TRUE(told.last->reason == StopReason::kComplete ||
                  told.last->reason == StopReason::kEndOfText)
          << stop_reason_name(told.last->reason) << ": " << told.text;
    }
  }
}

TEST_F(ServerTest, WhatIsCancelledEnds) {
  Server server = this->server();
  ServedRequest served = server.submit(story(200));
  ASSERT_TRUE(served.next());
  served.cancel();
  const Told told = read_all(served);
  ASSERT_TRUE(told.last);
  EXPECT_EQ(told.last->reason, StopReason::kCancelled);
  EXPECT_LT(told.last->counts.new_tokens, 200);
  { ServedRequest gone = server.submit(story(200, 3)); }  // nobody reads it
  ServedRequest other = server.submit(story(5));
  EXPECT_EQ(read_all(other).tokens, expected(story(5)).tokens);
  EXPECT_EQ(server.telemetry().cancelled, 2u);
}

TEST_F(ServerTest, WhoReadsSlowlyWaitsAlone) {
  ServerOptions options;
  options.max_unread_events = 4;
  Server server = this->server(options);
  ServedRequest slow = server.submit(story(30, 1)), fast = server.submit(story(30, 2));
  EXPECT_EQ(read_all(fast).tokens, expected(story(30, 2)).tokens);
  EXPECT_GT(server.telemetry().paused_readers, 0u);
  EXPECT_EQ(read_all(slow).tokens, expected(story(30, 1)).tokens);
}

TEST_F(ServerTest, BadRequestsAreToldAlone) {
  Server server = this->server();
  EXPECT_THROW(server.submit({}), Error);
  ServeRequest twice = story(3);
  twice.tokens = {1};
  EXPECT_THROW(server.submit(twice), Error);
  ServeRequest long_one = story(3);
  long_one.text.clear();
  long_one.tokens = std::vector<int32_t>(300, 5);
  ServeRequest adapted = story(3);
  adapted.model = "medical";
  ServeRequest hot = story(3);
  hot.sampler.temperature = -1;
  for (const ServeRequest& request : {long_one, adapted, hot}) {
    ServedRequest served = server.submit(request);
    const Told told = read_all(served);
    ASSERT_TRUE(told.last && told.last->error);
    EXPECT_TRUE(told.last->error->is_user_error()) << told.last->error->what();
    EXPECT_EQ(told.last->reason, StopReason::kFailed);
  }
  ServedRequest good = server.submit(story(5));
  EXPECT_EQ(read_all(good).tokens, expected(story(5)).tokens);
  EXPECT_EQ(server.telemetry().failed, 3u);
}

TEST_F(ServerTest, TheLineHasAnEnd) {
  ServerOptions options;
  options.max_waiting = 2;
  options.max_running = 1;
  Server server = this->server(options);
  std::vector<ServedRequest> taken;
  int refused = 0;
  for (int i = 0; i < 12; ++i) {
    try {
      taken.push_back(server.submit(story(40)));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  for (ServedRequest& request : taken) EXPECT_EQ(read_all(request).tokens.size(), 40u);
}

TEST_F(ServerTest, AnAccountHoldsItsRequestAlone) {
  ModelOptions options = server_model();
  options.engine.audit_mode = AuditMode::kDeferred;
  Server server(Model::open(shipped_model(), options));
  ServedRequest warm = server.submit(story(8));
  const std::vector<int32_t> tokens = read_all(warm).tokens;
  VectorSink sink;
  ServeRequest audited = story(8);
  audited.audit = &sink;
  audited.use_cache = false;
  ServedRequest served = server.submit(audited), beside = server.submit(story(20, 4));
  EXPECT_EQ(read_all(served).tokens, tokens);
  read_all(beside);
  const std::vector<TokenRecord> records = sink.take();
  const size_t prompt = alone_.tokenizer().encode(audited.text).size();
  ASSERT_EQ(records.size(), prompt + 7);  // the last one was never computed
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].position, static_cast<int32_t>(i));
  }
}

// A hit's account has what the first request's recorder said, to the bit, and says that it did not
// compute it.
TEST_F(ServerTest, AnAccountOfAHitHoldsWhatWasRecordedBefore) {
  ModelOptions options = server_model();
  options.engine.audit_mode = AuditMode::kDeferred;
  const auto record = [&](bool is_hit, const std::string& path) {
    Server server(Model::open(shipped_model(), options));
    ServeRequest request = story(10);
    for (int i = 0; i < 6; ++i) request.text += " a girl who lived in a house by the sea, and";
    if (is_hit) {
      ServedRequest before = server.submit(request);
      read_all(before);
    }
    std::vector<TokenRecord> records;
    VtrLog log(path, LogHeader());
    log.on_record([&records](const TokenRecord& one) { records.push_back(one); });
    request.audit = &log.sink();
    ServedRequest served = server.submit(request);
    const Told told = read_all(served);
    EXPECT_EQ(told.last->counts.cached_tokens > 0, is_hit);
    log.finish("length");
    return std::pair(records, log.counts());
  };
  TemporaryFolder folder;
  const auto [computed, whole] = record(false, folder / "computed.vtr");
  const auto [copied, counts] = record(true, folder / "copied.vtr");
  ASSERT_EQ(computed.size(), copied.size());
  for (size_t i = 0; i < computed.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(computed[i].position, copied[i].position);
    EXPECT_EQ(computed[i].token, copied[i].token);
    ASSERT_EQ(computed[i].layers.size(), copied[i].layers.size());
    for (size_t layer = 0; layer < computed[i].layers.size(); ++layer) {
      EXPECT_EQ(computed[i].layers[layer].residual_norm, copied[i].layers[layer].residual_norm);
      const auto& routes = computed[i].layers[layer].routes;
      const auto& copies = copied[i].layers[layer].routes;
      ASSERT_EQ(routes.size(), copies.size());
      for (size_t slot = 0; slot < routes.size(); ++slot) {
        EXPECT_EQ(routes[slot].expert, copies[slot].expert);
        EXPECT_EQ(routes[slot].weight, copies[slot].weight);
      }
    }
  }
  EXPECT_EQ(whole.positions.replayed, 0u);
  EXPECT_GT(counts.positions.replayed, 32u);
  EXPECT_EQ(counts.positions.replayed + counts.positions.captured, whole.positions.captured);
  EXPECT_EQ(counts.tokens, whole.tokens);
  for (const char* name : {"computed.vtr", "copied.vtr"}) {
    const VtrReport report = verify_vtr(folder / name);
    EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << name << ": " << report.problem;
  }
}

TEST_F(ServerTest, GuessesChangeNothing) {
  ServerOptions options;
  options.drafter = "ngram";
  Server server = this->server(options);
  std::vector<ServedRequest> requests;
  for (uint64_t i = 0; i < 5; ++i) requests.push_back(server.submit(story(60, i)));
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(read_all(requests[i]).tokens, expected(story(60, i)).tokens);
  }
}

TEST_F(ServerTest, TheEndOfTheServerEndsAll) {
  std::optional<ServedRequest> left;
  {
    Server server = this->server();
    left = server.submit(story(200));
    ASSERT_TRUE(left->next());
  }
  const Told told = read_all(*left);
  ASSERT_TRUE(told.last);
  EXPECT_EQ(told.last->reason, StopReason::kCancelled);
  left->cancel();
}

// A time in the system prompt: what stands behind it is computed again each time.
TEST_F(ServerTest, APromptThatPartsFromTheLastOneIsTold) {
  ServerOptions options;
  options.stable_roots = {{"stable", "system", {"time: *"}}};
  Server server = this->server(options);
  const auto ask = [&](const std::string& time, const std::string& tenant) {
    ServeRequest request;
    request.messages = {{"system", "You are a storyteller who loves short tales.\ntime: " + time +
                                       "\nTell of animals, of the sea and of old houses, and "
                                       "always end with a good deed that somebody did."},
                        {"user", "Tell me one."}};
    request.max_new_tokens = 2;
    request.tenant = tenant;
    ServedRequest served = server.submit(request);
    return *read_all(served).last;
  };
  EXPECT_FALSE(ask("09:14:27", "a").prompt_break);
  const ServeEvent told = ask("10:55:08", "a");
  ASSERT_TRUE(told.prompt_break);
  EXPECT_EQ(told.prompt_break->section, "messages[0] (system)");
  EXPECT_GT(told.prompt_break->lost_tokens, 16);
  EXPECT_NE(told.prompt_break->before, told.prompt_break->after);
  EXPECT_EQ(server.telemetry().prompt_breaks, 1u);
  // Moved behind the other lines it breaks less.
  ask("09:14:27", "stable");
  const ServeEvent moved = ask("10:55:08", "stable");
  EXPECT_GT(moved.counts.cached_tokens, told.counts.cached_tokens + 16);
  EXPECT_NE(moved.stable_prompt, moved.given_prompt);
  EXPECT_FALSE(moved.given_prompt.empty());
  EXPECT_TRUE(told.given_prompt.empty());
}

TEST_F(ServerTest, APinnedPromptStays) {
  ModelOptions model = server_model(1);
  model.engine.max_context = 128;
  Server server(Model::open(shipped_model(), model));
  ServeRequest pinned = story(2);
  for (int i = 0; i < 4; ++i) pinned.text += " a girl who lived in a house by the sea, and";
  pinned.pins_prompt = true;
  ServedRequest first = server.submit(pinned);
  read_all(first);
  for (int i = 0; i < 12; ++i) {  // more than there is room for
    ServeRequest other = story(60, static_cast<uint64_t>(i) + 1);
    other.text = std::to_string(i) + other.text + other.text;
    ServedRequest served = server.submit(other);
    read_all(served);
  }
  ServedRequest again = server.submit(pinned);
  EXPECT_GT(read_all(again).last->counts.cached_tokens, 32);
  EXPECT_GT(server.telemetry().evicted_prefixes, 0u);
  server.clear_cache();
  EXPECT_EQ(server.telemetry().kept_prefixes, 0);
}

TEST_F(ServerTest, SeveralModelsAreServedByName) {
  ModelOptions federated = server_model();
  federated.engine.keep_logits = false;
  std::vector<NamedModel> models;
  models.push_back({"base", Model::open(shipped_model(), server_model())});
  models.push_back({"experts", Model::open(shipped_federation(), federated)});
  Server server(std::move(models));
  ServeRequest request = story(8);
  ServedRequest first = server.submit(request);
  request.model = "experts";
  ServedRequest second = server.submit(request);
  request.model = "nobody";
  ServedRequest third = server.submit(request);
  EXPECT_EQ(read_all(first).tokens, expected(story(8)).tokens);
  EXPECT_EQ(read_all(second).tokens.size(), 8u);
  const Told refused = read_all(third);
  ASSERT_TRUE(refused.last->error);
  EXPECT_NE(std::string(refused.last->error->what()).find("base, experts"), std::string::npos);
  std::vector<NamedModel> twice;
  twice.push_back({"a", Model::open(shipped_model(), server_model())});
  twice.push_back({"a", Model::open(shipped_model(), server_model())});
  EXPECT_THROW(Server(std::move(twice)), Error);
  EXPECT_THROW(Server(std::vector<NamedModel>()), Error);
}

TEST_F(ServerTest, AFederationIsServed) {
  ModelOptions options = server_model();
  options.engine.keep_logits = false;
  Model alone = Model::open(shipped_federation(), options);
  const auto prompt = alone.tokenizer().encode(story(1).text);
  GenerateOptions generated;
  generated.max_new_tokens = 10;
  generated.sampler = story(10).sampler;
  generated.ignore_end_of_text = true;
  const GenerateResult expected = generate(alone, prompt, generated);
  Server server(Model::open(shipped_federation(), options));
  std::vector<ServedRequest> requests;
  requests.reserve(3);
  for (int i = 0; i < 3; ++i) requests.push_back(server.submit(story(10)));
  for (ServedRequest& request : requests) EXPECT_EQ(read_all(request).tokens, expected.tokens);
}

}  // namespace
}  // namespace vitrine::testing
