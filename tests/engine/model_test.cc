// SPDX-License-Identifier: Apache-2.0
// vitrine::Model: the same answers as its parts give, for each kind of file.
#include <atomic>
#include <functional>
#include <regex>
#include <set>
#include <thread>

#include "tests/engine/model_fixture.h"
#include "tests/support/in_sequence.h"

namespace vitrine::testing {
namespace {

GenerateOptions drawn(int tokens) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  options.sampler = {.temperature = 0.9F, .seed = 11};
  options.ignore_end_of_text = true;
  return options;
}

// ---- The three kinds ----------------------------------------------------------------------------

struct Kind {
  std::string name, path, prompt;
};

class ModelKinds : public ::testing::TestWithParam<Kind> {
 protected:
  ModelKinds() : model_(Model::open(GetParam().path, small_options())) {
    prompt_ = model_.tokenizer().encode(GetParam().prompt);
  }
  bool is_federation() const { return GetParam().name == "federation"; }

  Model model_;
  std::vector<int32_t> prompt_;
};

TEST_P(ModelKinds, AnswersAsItsPartsDo) {
  EXPECT_EQ(model_.path(), GetParam().path);
  ASSERT_GE(prompt_.size(), 2U);
  std::vector<int32_t> told;
  const GenerateResult result = generate(model_, prompt_, drawn(12), [&](const TokenEvent& event) {
    told.push_back(event.token);
    return true;
  });
  EXPECT_EQ(result.tokens.size(), 12U);
  EXPECT_EQ(told, result.tokens);
  const EngineOptions options = small_options().engine;
  if (is_federation()) {
    const auto parts = Federation::load(FederationSpec::load(GetParam().path), options);
    EXPECT_EQ(generate(*parts, prompt_, drawn(12)).tokens, result.tokens);
    EXPECT_EQ(model_.summary().num_layers, parts->summary().num_layers);
  } else {
    const auto parts = Engine::load(GetParam().path, options);
    EXPECT_EQ(generate(*parts, prompt_, drawn(12)).tokens, result.tokens);
    EXPECT_EQ(model_.summary().num_layers, parts->summary().num_layers);
  }
  EXPECT_EQ(model_.engine() == nullptr, is_federation());
  EXPECT_EQ(model_.federation() == nullptr, !is_federation());
  EXPECT_EQ(std::as_const(model_).engine(), model_.engine());
  EXPECT_EQ(std::as_const(model_).federation(), model_.federation());
  EXPECT_EQ(model_.options().max_context, 64);
  EXPECT_EQ(model_.options().kernels, KernelPath::kFused);
  EXPECT_LE(model_.tokenizer().vocab_size(), model_.summary().vocab_size);
}

TEST_P(ModelKinds, ServesSequences) {
  ModelOptions options = small_options();
  options.engine.max_sequences = 2;
  Model model = Model::open(GetParam().path, options);
  const SequenceId kept = model.create_sequence();
  const GenerateResult first = generate(model, prompt_, in_sequence(kept, drawn(6)));
  const auto held = static_cast<int64_t>(prompt_.size() + 5);  // all but the last token
  ASSERT_EQ(model.length(kept), held);
  EXPECT_EQ(model.tokens(kept).back(), first.tokens[4]);
  const SequenceId copy = model.fork(kept);
  EXPECT_EQ(model.length(copy), held);
  model.truncate(copy, static_cast<int64_t>(prompt_.size()) - 1);
  EXPECT_EQ(generate(model, {&prompt_.back(), 1}, in_sequence(copy, drawn(6))).tokens,
            first.tokens);
  StepInput input;
  input.sequence = kept;
  input.tokens = {&first.tokens.back(), 1};
  const std::span<const StepOutput> outputs = model.step({&input, 1});
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_GE(outputs[0].token, 0);
  EXPECT_EQ(model.length(kept), held + 1);
  model.release(kept), model.release(copy);
  EXPECT_EQ(error_of([&] { static_cast<void>(model.length(kept)); }).kind(),
            ErrorKind::kInvalidArgument);
  const Error error = error_of([&] { model.create_sequence(0); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"adapter"})) << error.what();
}

TEST_P(ModelKinds, HasATableOfItsTokensForConstraints) {
  const TokenTable table = model_.token_table();
  const ModelSummary& summary = model_.summary();
  ASSERT_EQ(table.vocab_size(), summary.vocab_size);
  std::set<int32_t> ends(summary.eos_token_ids.begin(), summary.eos_token_ids.end());
  ends.insert(model_.end_of_turn_ids().begin(), model_.end_of_turn_ids().end());
  EXPECT_EQ(std::set<int32_t>(table.end_ids().begin(), table.end_ids().end()), ends);
  EXPECT_EQ(table.end_ids().size(), ends.size());
  for (int32_t id = 0; id < table.vocab_size(); ++id) {
    const bool is_text = id < model_.tokenizer().vocab_size() && !model_.tokenizer().is_special(id);
    ASSERT_EQ(table.bytes(id), is_text ? model_.tokenizer().token_bytes(id) : "") << id;
  }
  // What one grammar has made, the next of the same table finds, whoever asked for the table.
  const Grammar grammar = Grammar::regex(table, "[a-f]{3,5}");
  GenerateOptions options = drawn(12);
  options.ignore_end_of_text = false;
  const auto constraint = grammar.start();
  options.constraint = constraint.get();
  const GenerateResult result = generate(model_, prompt_, options);
  EXPECT_TRUE(result.is_complete);
  EXPECT_TRUE(std::regex_match(model_.tokenizer().decode(result.tokens), std::regex("[a-f]{3,5}")));
  EXPECT_GT(model_.token_table().shared_statistics().misses, 0U);
}

TEST_P(ModelKinds, RecordsIntoASink) {
  SlabRing ring(size_t{1} << 20, SlabRing::WhenFull::kOverwrite);
  ModelOptions options = small_options();
  options.engine.audit_mode = AuditMode::kDeferred;
  Model model = Model::open(GetParam().path, options);
  model.set_audit_sink(&ring);
  EXPECT_EQ(model.audit_sink(), &ring);
  const GenerateResult result = generate(model, prompt_, drawn(5));
  std::vector<int32_t> recorded;
  for (const TokenRecord& record : ring.drain_records()) {
    EXPECT_EQ(record.layers.size(), model.audit_layout().layers.size());
    if (record.has_prediction) recorded.push_back(record.prediction.token);
  }
  EXPECT_EQ(recorded, result.tokens);
  model.set_audit_mode(AuditMode::kNone);
  generate(model, prompt_, drawn(5));
  EXPECT_TRUE(ring.drain_records().empty());
  model.set_audit_sink(nullptr);
  EXPECT_EQ(model.audit_sink(), nullptr);
}

TEST_P(ModelKinds, Moves) {
  const std::vector<int32_t> expected = generate(model_, prompt_, drawn(4)).tokens;
  Model other = std::move(model_);
  EXPECT_EQ(generate(other, prompt_, drawn(4)).tokens, expected);
  model_ = std::move(other);
  EXPECT_EQ(generate(model_, prompt_, drawn(4)).tokens, expected);
}

/// Does something in the middle of a step, where the sampler is asked.
class MeanwhileStage final : public SamplerStage {
 public:
  explicit MeanwhileStage(std::function<void()> action) : action_(std::move(action)) {}
  std::string_view name() const override { return "meanwhile"; }
  uint32_t stage_id() const override { return kFirstHostStageId; }
  void apply(Candidates&, const SampleContext&) override { action_(); }

 private:
  std::function<void()> action_;
};

TEST_P(ModelKinds, ASecondThreadIsRefused) {
  ModelOptions options = small_options();
  options.engine.max_sequences = 2;
  Model model = Model::open(GetParam().path, options);
  const SequenceId sequence = model.create_sequence(), other = model.create_sequence();
  const std::string host =
      is_federation() ? "a federation serves one step" : "an engine serves one";
  StepInput its;
  its.sequence = other;
  its.tokens = prompt_;
  const auto try_all = [&](std::string_view why) {
    const std::vector<std::function<void()>> calls = {
        [&] {
          model.step({&its, 1});
        },
        [&] { model.create_sequence(); },
        [&] { model.fork(other); },
        [&] { model.truncate(other, 0); },
        [&] { model.set_audit_sink(nullptr); },
        [&] { model.set_audit_mode(AuditMode::kNone); }};
    for (const auto& call : calls) {
      const Error error = error_of(call);
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_TRUE(is_one_line_with(error, {host, why})) << error.what();
    }
  };
  std::atomic<bool> is_released = false;
  std::thread releaser;
  SamplerPipeline pipeline;
  pipeline.add(std::make_unique<MeanwhileStage>([&] {
    std::thread([&] { try_all("another thread"); }).join();
    try_all("what this step calls");
    EXPECT_THROW(model.release(other), Error);
    EXPECT_EQ(model.length(other), 0);
    releaser = std::thread([&] {  // waits, so that destructors can
      model.release(other);
      is_released = true;
    });
    EXPECT_FALSE(is_released);
  }));
  pipeline.add(make_greedy_stage());
  StepInput input;
  input.sequence = sequence;
  input.tokens = prompt_;
  input.sampler = &pipeline;
  const int32_t token = model.step({&input, 1})[0].token;
  releaser.join();
  EXPECT_TRUE(is_released);
  EXPECT_EQ(model.length(sequence), static_cast<int64_t>(prompt_.size()));
  EXPECT_EQ(error_of([&] { static_cast<void>(model.length(other)); }).kind(),
            ErrorKind::kInvalidArgument);
  // The step was not disturbed, and the model serves on.
  model.truncate(sequence, 0);
  input.sampler = nullptr;
  EXPECT_EQ(model.step({&input, 1})[0].token, token);
}

// Whichever thread is refused, none hangs, and the model serves on.
TEST_P(ModelKinds, TwoThreadsThatGenerateEnd) {
  ModelOptions options = small_options();
  options.engine.max_sequences = 2;
  Model model = Model::open(GetParam().path, options);
  const std::vector<int32_t> expected = generate(model, prompt_, drawn(24)).tokens;
  std::atomic<int> answers = 0, refusals = 0;
  const auto work = [&] {
    for (int i = 0; i < 20; ++i) {
      try {
        // What a step gave stands until the next one, which may be the other thread's: of the
        // tokens nothing is sure.
        EXPECT_FALSE(generate(model, prompt_, drawn(24)).tokens.empty());
        ++answers;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
        ++refusals;
      }
    }
  };
  std::thread one(work), two(work);
  one.join(), two.join();
  EXPECT_EQ(answers + refusals, 40);
  EXPECT_EQ(generate(model, prompt_, drawn(24)).tokens, expected);
}

INSTANTIATE_TEST_SUITE_P(Files, ModelKinds,
                         ::testing::Values(Kind{"folder", shipped_model(), "Once upon a time"},
                                           Kind{"gguf", gguf_file(), "a b ab a"},
                                           Kind{"federation", shipped_federation(),
                                                "Once upon a time"}),
                         [](const auto& info) { return info.param.name; });

// ---- Conversations ------------------------------------------------------------------------------

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}";

std::string tokenizer_config(const std::string& chat_template) {
  return R"({"eos_token": "<|endoftext|>", "chat_template": ")" + chat_template + "\"}";
}

TEST(ModelChat, EncodesMessagesByTheTemplate) {
  LinkedModel folder;
  folder.write("tokenizer_config.json", tokenizer_config(kTemplate));
  const Model model = Model::open(folder.path(), small_options());
  ASSERT_NE(model.chat_template(), nullptr);
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", "Who?"}};
  const std::string text = "<system>Be brief.<|endoftext|><user>Who?<|endoftext|>";
  EXPECT_EQ(model.chat_template()->render(messages), text);
  EXPECT_EQ(model.encode_chat(messages), model.tokenizer().encode(text, false));
  EXPECT_EQ(model.encode_chat({{{"user", "Who?"}}}),
            model.tokenizer().encode("<user>Who?<|endoftext|>", false));
  const int32_t end = model.tokenizer().token_id("<|endoftext|>");
  ASSERT_GE(end, 0);
  EXPECT_NE(std::ranges::find(model.end_of_turn_ids(), end), model.end_of_turn_ids().end());
}

TEST(ModelChat, ATemplateOfTheHost) {
  LinkedModel folder;
  folder.write("tokenizer_config.json", tokenizer_config(kTemplate));
  ModelOptions options = small_options();
  options.chat_template = "A {{ messages[0].content }}{{ eos_token }}";
  const Model model = Model::open(folder.path(), options);
  EXPECT_EQ(model.encode_chat({{{"user", "b"}}}),
            model.tokenizer().encode("A b<|endoftext|>", false));
  for (const char* bad : {"{% if %}", "\xff"}) {
    options.chat_template = bad;
    const Error error = error_of([&] { Model::open(folder.path(), options); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, {"'chat_template'"})) << error.what();
  }
  options.chat_template = "G{{ messages[0].content }}";
  EXPECT_FALSE(Model::open(gguf_file(), options).encode_chat({{{"user", "a"}}}).empty());
  EXPECT_FALSE(Model::open(shipped_federation(), options).encode_chat({{{"user", "a"}}}).empty());
}

TEST(ModelChat, AModelWithoutATemplate) {
  const Model model = Model::open(shipped_model(), small_options());
  EXPECT_EQ(model.chat_template(), nullptr);
  EXPECT_TRUE(model.end_of_turn_ids().empty());
  const Error error = error_of([&] { model.encode_chat({{{"user", "a"}}}); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {shipped_model(), "no chat template"})) << error.what();
}

TEST(ModelChat, ATemplateThatCannotBeReadIsNoObstacleToTexts) {
  LinkedModel folder;
  folder.write("tokenizer_config.json", tokenizer_config("{% if %}"));
  Model model = Model::open(folder.path(), small_options());
  EXPECT_EQ(generate(model, model.tokenizer().encode("Once"), drawn(3)).tokens.size(), 3U);
  for (const Error& error :
       {error_of([&] { static_cast<void>(model.chat_template()); }), error_of([&] {
          model.encode_chat({{{"user", "a"}}});
        })}) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, {"tokenizer_config.json", "line 1"})) << error.what();
  }
}

}  // namespace
}  // namespace vitrine::testing
