// SPDX-License-Identifier: Apache-2.0
// A model that guesses for another one, of the same vocabulary and of others.
#include <nlohmann/json.hpp>
#include "vitrine/drafters.h"

#include "engine/draft/draft_spelling.h"
#include "tests/engine/cancelled_drafter.h"
#include "tests/engine/model_fixture.h"

namespace vitrine::testing {
namespace {

constexpr const char* kText = "Once upon a time there was a little girl who had a red ball. ";

// A tokenizer of single bytes: id 7 + b is byte b, in GPT-2's spelling of bytes.
std::string byte_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  int next = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_plain =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = is_plain ? byte : 256 + next++;
    std::string text;
    if (code < 128) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    }
    vocab[text] = byte + 7;
  }
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", false}};
  return nlohmann::json{
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"pre_tokenizer", byte_level},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}}
      .dump();
}

// The shipped tokenizer with two ids exchanged: another vocabulary, and nearly the same.
std::string exchanged_tokenizer() {
  auto json = nlohmann::json::parse(read_bytes(shipped_model() + "/tokenizer.json"));
  auto& vocab = json["model"]["vocab"];
  std::swap(vocab.at("Q"), vocab.at("X"));
  return json.dump();
}

class DraftModelTest : public ::testing::Test {
 protected:
  DraftModelTest()
      : target_(Model::open(shipped_model(), options(3))),
        prompt_(target_.tokenizer().encode(kText)) {}
  static ModelOptions options(int sequences) {
    ModelOptions options;
    options.engine.threads = 2;
    options.engine.max_context = 160;
    options.engine.max_sequences = sequences;
    options.engine.max_logit_rows = 16;
    options.engine.max_step_tokens = 24;
    options.engine.keep_logits = true;
    options.engine.audit_mode = AuditMode::kDeferred;
    return options;
  }
  static Model draft(const std::string& path, int sequences = 1) {
    ModelOptions chosen = options(sequences);
    chosen.engine.audit_mode = AuditMode::kNone;
    chosen.engine.keep_logits = false;
    return Model::open(path, chosen);
  }
  AskedAnswer ask(const SamplerOptions& sampler) const {
    AskedAnswer asked;
    asked.prompt = prompt_;
    asked.options.sampler = sampler;
    asked.options.max_new_tokens = 80;
    asked.options.ignore_end_of_text = true;
    return asked;
  }

  Model target_;
  std::vector<int32_t> prompt_;
};

TEST_F(DraftModelTest, OfTheSameModelIsRightWhereNothingIsDrawn) {
  const auto drafter = make_draft_model(draft(shipped_model()), target_.tokenizer());
  EXPECT_EQ(drafter->name(), "draft");
  for (const auto& [name, sampler] : all_samplers()) {
    SCOPED_TRACE(name);
    const AskedAnswer asked = ask(sampler);
    const ToldAnswer plain = make_answer(target_, asked);
    const ToldAnswer found =
        make_answer(target_, asked, {.drafter = drafter.get(), .max_drafts = 5});
    expect_same_answer(plain, found);
    const SpeculationCounts& counts = found.result.speculation;
    EXPECT_EQ(counts.problem, "");
    EXPECT_GT(counts.num_accepted_draft_tokens, 0);
    if (name != "greedy") continue;
    EXPECT_EQ(counts.num_accepted_draft_tokens, counts.num_draft_tokens);
    EXPECT_GT(counts.acceptance_histogram[5], 10);
  }
}

TEST_F(DraftModelTest, HasAPartOfTheEnginesBudget) {
  EngineOptions target = target_.options();
  const EngineOptions whole = draft_model_options(shipped_model(), target);
  EXPECT_EQ(whole.kv_bytes, 0U);
  EXPECT_EQ(whole.max_context, 160);
  EXPECT_EQ(whole.max_sequences, 3);
  const uint64_t half = target.kv_bytes / 2;
  target.draft_kv_bytes = half;
  ModelOptions options;
  options.engine = draft_model_options(shipped_model(), target);
  EXPECT_EQ(options.engine.kv_bytes, half);
  target_ = Model::open(shipped_model(), {.engine = target});
  const auto drafter = make_draft_model(Model::open(shipped_model(), options), target_.tokenizer());
  EXPECT_LE(drafter->memory().kv_bytes, half);
  const AskedAnswer asked = ask(SamplerOptions());
  const ToldAnswer found = make_answer(target_, asked, {.drafter = drafter.get(), .max_drafts = 5});
  expect_same_answer(make_answer(target_, asked), found);
  EXPECT_EQ(found.result.speculation.problem, "");
  target.draft_kv_bytes = 1000;
  const Error error = error_of([&] { draft_model_options(shipped_model(), target); });
  EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  EXPECT_TRUE(is_one_line_with(
      error, {"draft model", "'draft_kv_bytes'", "1000", std::to_string(target.kv_bytes)}))
      << error.what();
}

TEST_F(DraftModelTest, GuessesWhatElseItThoughtLikelyInATree) {
  target_ = Model::open(shipped_model(), options(12));  // room for branches
  const auto drafter = make_draft_model(draft(shipped_model()), target_.tokenizer());
  int64_t of_chains = 0, of_trees = 0;
  for (const auto& [name, sampler] : all_samplers()) {
    SCOPED_TRACE(name);
    const AskedAnswer asked = ask(sampler);
    const ToldAnswer plain = make_answer(target_, asked);
    const auto guessed = [&](int32_t drafts, int32_t depth) {
      const ToldAnswer found = make_answer(
          target_, asked, {.drafter = drafter.get(), .max_drafts = drafts, .max_depth = depth});
      expect_same_answer(plain, found);
      EXPECT_EQ(found.result.speculation.problem, "");
      return found.result.speculation;
    };
    const SpeculationCounts chain = guessed(3, 0), tree = guessed(12, 3), flat = guessed(8, 1);
    EXPECT_GT(tree.num_draft_tokens, 3 * tree.num_spec_steps);
    EXPECT_EQ(flat.num_accepted_draft_tokens, flat.acceptance_histogram[1]);
    EXPECT_GT(flat.num_accepted_draft_tokens, 10);
    of_chains += chain.num_passes;
    of_trees += tree.num_passes;
    if (name != "greedy") continue;
    EXPECT_EQ(chain.num_accepted_draft_tokens, chain.num_draft_tokens);
    EXPECT_GT(tree.acceptance_histogram[3], 10) << "the model's own choices are among them";
  }
  EXPECT_LT(of_trees, of_chains);
}

TEST_F(DraftModelTest, OfAnotherVocabularyIsSpeltAnew) {
  LinkedModel exchanged({"tokenizer.json"}), bytes({"tokenizer.json"});
  exchanged.write("tokenizer.json", exchanged_tokenizer());
  bytes.write("tokenizer.json", byte_tokenizer());
  for (const LinkedModel* folder : {&exchanged, &bytes}) {
    Model model = draft(folder->path());
    const VocabularyOverlap overlap = compare_vocabularies(model.tokenizer(), target_.tokenizer());
    EXPECT_FALSE(overlap.is_same);
    EXPECT_EQ(overlap.common, overlap.draft_tokens);
    const auto drafter = make_draft_model(std::move(model), target_.tokenizer());
    for (const auto& [name, sampler] : all_samplers()) {
      SCOPED_TRACE(name);
      const AskedAnswer asked = ask(sampler);
      const ToldAnswer plain = make_answer(target_, asked);
      const ToldAnswer found =
          make_answer(target_, asked, {.drafter = drafter.get(), .max_drafts = 5});
      expect_same_answer(plain, found);
      EXPECT_EQ(found.result.speculation.problem, "");
      const ToldAnswer chain =
          make_answer(target_, asked, {.drafter = drafter.get(), .max_drafts = 8, .max_depth = 3});
      expect_same_answer(plain, chain);
      EXPECT_EQ(chain.result.speculation.acceptance_histogram[4], 0);
      EXPECT_LE(chain.result.speculation.num_draft_tokens,
                3 * chain.result.speculation.num_spec_steps);
      if (name == "greedy" && folder == &exchanged) {
        EXPECT_GT(found.result.speculation.draft_acceptance_rate(), 0.7);
      }
    }
  }
}

TEST_F(DraftModelTest, FollowsSeveralAnswersAtOnceAndGivesTheirSequencesBack) {
  const AskedAnswer asked = ask(all_samplers()[0].second);
  const std::vector<int32_t> truth = make_answer(target_, asked).result.tokens;
  const auto drafter = make_draft_model(draft(shipped_model(), 3), target_.tokenizer());
  for (int round = 0; round < 3; ++round) {  // more texts in all than it may follow at once
    GenerateOptions generation = asked.options;
    generation.speculation = {.drafter = drafter.get(), .max_drafts = 4};
    std::vector<Generation> answers;
    answers.reserve(3);
    for (int i = 0; i < 3; ++i) answers.emplace_back(target_, asked.prompt, generation);
    const int64_t passes = answer_together(target_, answers, 8, 5);
    EXPECT_LT(passes, 30);
    for (Generation& one : answers) EXPECT_EQ(one.take_result().tokens, truth);
  }
}

TEST_F(DraftModelTest, EndsWithItsAnswer) {
  const auto drafter = make_draft_model(draft(shipped_model()), target_.tokenizer());
  expect_cancelled_guesses(target_, *drafter, ask(all_samplers()[1].second));
}

TEST_F(DraftModelTest, StopsWhereItsContextEnds) {
  ModelOptions small = options(1);
  small.engine.max_context = 40;
  const auto drafter = make_draft_model(Model::open(shipped_model(), small), target_.tokenizer());
  const AskedAnswer asked = ask(all_samplers()[0].second);
  const ToldAnswer plain = make_answer(target_, asked);
  const ToldAnswer found = make_answer(target_, asked, {.drafter = drafter.get()});
  expect_same_answer(plain, found);
  EXPECT_EQ(found.result.speculation.problem, "");
  EXPECT_GT(found.result.speculation.num_draft_tokens, 5);
  EXPECT_LT(found.result.speculation.num_draft_tokens, 60);
}

TEST_F(DraftModelTest, OfAForeignLanguageIsRefused) {
  LinkedModel foreign({"tokenizer.json"});
  nlohmann::json json = nlohmann::json::parse(byte_tokenizer());
  json["model"]["vocab"] = {{"\xe4\xbd\xa0\xe5\xa5\xbd", 0}};
  foreign.write("tokenizer.json", json.dump());
  const Error error =
      error_of([&] { make_draft_model(draft(foreign.path()), target_.tokenizer()); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {foreign.path(), "no token in common"})) << error.what();
}

TEST(DraftSpelling, SpellsTheTextAndTheGuessesThatFollowIt) {
  const Tokenizer target = Tokenizer::from_file(shipped_model() + "/tokenizer.json");
  const Tokenizer bytes = Tokenizer::from_json(byte_tokenizer(), "bytes");
  const engine::DraftSpellings spellings(bytes, target, {false, 300});
  const std::string text = std::string(kText) + "na\xc3\xafve \xf0\x9f\x99\x82 12345\n\n  tabs\t!";
  const std::vector<int32_t> tokens = target.encode(text);
  for (size_t end = 1; end <= tokens.size(); ++end) {
    engine::DraftSpelling whole = spellings.begin(), stepwise = spellings.begin();
    whole.append(std::span(tokens).first(end));
    for (size_t i = 0; i < end; ++i) {
      stepwise.append({&tokens[i], 1});
      if (i % 3 == 0) stepwise.tokens(spellings);
    }
    std::string spelt, expected;
    for (const int32_t id : whole.tokens(spellings)) spelt += bytes.token_bytes(id);
    for (size_t i = 0; i < end; ++i) expected += target.token_bytes(tokens[i]);
    // A character whose bytes are not all there is left out.
    ASSERT_TRUE(expected.starts_with(spelt)) << end;
    EXPECT_EQ(target.decode(target.encode(spelt)), spelt);
    EXPECT_LE(expected.size() - spelt.size(), 3U);
    EXPECT_TRUE(std::ranges::equal(whole.tokens(spellings), stepwise.tokens(spellings)));
    // Bytes that were guessed become the tokens that the text has there.
    std::string rest;
    for (size_t i = end; i < tokens.size(); ++i) rest += target.token_bytes(tokens[i]);
    const std::vector<int32_t> guessed = bytes.encode(rest, false);
    std::vector<int32_t> out(tokens.size());
    const int32_t count = spellings.guesses(whole, guessed, out);
    const std::vector<int32_t> right(tokens.begin() + static_cast<ptrdiff_t>(end), tokens.end());
    // A character that tokens divide cannot be spelt from its middle.
    const bool is_whole =
        expected.empty() || rest.empty() || (static_cast<unsigned char>(rest[0]) & 0xc0) != 0x80;
    if (is_whole) {
      EXPECT_EQ(std::vector<int32_t>(out.begin(), out.begin() + count), right) << end;
    }
  }
}

TEST(DraftSpelling, KeepsWhatDidNotChangeAndForgetsWhatWasCut) {
  const Tokenizer target = Tokenizer::from_file(shipped_model() + "/tokenizer.json");
  const Tokenizer bytes = Tokenizer::from_json(byte_tokenizer(), "bytes");
  const engine::DraftSpellings spellings(bytes, target, {false, 300});
  engine::DraftSpelling text = spellings.begin();
  text.append(target.encode(kText));
  const auto spelt = text.tokens(spellings);
  const std::vector<int32_t> first(spelt.begin(), spelt.end());
  text.append(target.encode(" More of it"));
  const auto more = text.tokens(spellings);
  EXPECT_GT(text.unchanged(), 40);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + text.unchanged(), more.begin()));
  text.truncate(3);
  std::string cut, expected;
  for (const int32_t id : text.tokens(spellings)) cut += bytes.token_bytes(id);
  const std::vector<int32_t> tokens = target.encode(kText);
  for (size_t i = 0; i < 3; ++i) expected += target.token_bytes(tokens[i]);
  EXPECT_EQ(cut, expected);
  // A token that the draft model lacks leaves nothing to guess from where the vocabulary is one.
  const engine::DraftSpellings same(target, target, {true, 100});
  engine::DraftSpelling own = same.begin();
  own.append(std::vector<int32_t>{5, 6, 99});
  EXPECT_EQ(own.tokens(same).size(), 3U);
  own.append(std::vector<int32_t>{100});
  EXPECT_TRUE(own.tokens(same).empty());
  own.truncate(2);
  EXPECT_EQ(own.tokens(same).size(), 2U);
}

}  // namespace
}  // namespace vitrine::testing
