// SPDX-License-Identifier: Apache-2.0
// A suite put to a model: the same bits however it is asked, runs that are cut off and gone on
// with, and files of results that lie.
#include "vitrine/evaluation.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/test_data.h"
#include "vitrine/quality.h"

namespace vitrine::testing {
namespace {

namespace fs = std::filesystem;
using testing_support::shipped_model;

constexpr const char* kTemplate =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

/// Three tasks, one of each kind. What is right is made up: who reads is looked at, not the model.
constexpr const char* kSuite = R"(
[suite]
name = "small"
version = "1"
seed = 5

[[task]]
name = "stories"
domain = "logic"
kind = "answer"
items = "stories.jsonl"
scorer = "contains"
max_new_tokens = 24
licence = "CC0-1.0"
source = "this test"

[[task]]
name = "words"
domain = "text"
kind = "choice"
form = "text"
items = "words.jsonl"
licence = "CC0-1.0"
source = "this test"

[[task]]
name = "prose"
domain = "text"
kind = "text"
items = "prose.jsonl"
window = 40
licence = "CC0-1.0"
source = "this test"
)";
constexpr const char* kStories =
    "{\"id\": \"a\", \"prompt\": \"Once upon a time, there was\", \"answer\": [\"the\"]}\n"
    "{\"id\": \"b\", \"prompt\": \"The little dog\", \"answer\": [\"zebra\"]}\n"
    "{\"id\": \"c\", \"prompt\": \"Once upon a time, there was a cat\", \"answer\": [\"the\"], "
    "\"reference\": \" who liked the sun.\"}\n"
    "{\"id\": \"d\", \"prompt\": \"In the garden\", \"answer\": [\"the\"], \"critical\": true}\n";
constexpr const char* kWords =
    "{\"id\": \"x\", \"prompt\": \"The sun is\", \"choices\": [\" bright today and warm\", \" "
    "zx\", "
    "\" of\"], \"answer\": 0}\n"
    "{\"id\": \"y\", \"prompt\": \"They went to the\", \"choices\": [\" qq qq\", \" park\"], "
    "\"answer\": 1}\n";
constexpr const char* kProse =
    "{\"id\": \"p\", \"text\": \"It was a quiet evening. The lamps were lit one after another, and "
    "the people walked home along the river, slowly, as if they had all the time in the world. "
    "Nobody spoke, for there was nothing that had to be said.\"}\n";

class EvaluateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("vitrine_evaluate_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    write("suite.toml", kSuite);
    write("stories.jsonl", kStories);
    write("words.jsonl", kWords);
    write("prose.jsonl", kProse);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }
  Suite suite() const { return Suite::open(path("suite.toml")); }

  static std::unique_ptr<EvaluationTarget> target(int parallel = 3, int threads = 1,
                                                  int step_tokens = 64,
                                                  const std::string& audit = "",
                                                  const std::string& drafter = "") {
    ModelOptions options;
    options.engine.threads = threads;
    options.engine.max_context = 256;
    options.engine.max_step_tokens = step_tokens;
    options.engine.audit_mode = audit.empty() ? AuditMode::kNone : AuditMode::kDeferred;
    options.chat_template = kTemplate;
    prepare_for_evaluation(options, parallel);
    ModelTargetOptions asked;
    asked.parallel = parallel;
    asked.audit_folder = audit;
    asked.drafter = drafter;
    return make_model_target(Model::open(shipped_model(), options), asked);
  }

  static std::map<std::string, std::string> digests(const Evaluation& evaluation) {
    std::map<std::string, std::string> all;
    for (const EvaluatedItem& item : evaluation.items) {
      all[item.task + "/" + item.id] = item.digest;
    }
    return all;
  }
  Evaluation run(EvaluationTarget& target, const std::string& name) const {
    EXPECT_TRUE(evaluate(suite(), target, path(name)));
    return read_evaluation(path(name));
  }

  /// What reading a result's changed text says.
  std::string refusal(const std::string& text) const {
    write("broken.eval", text);
    try {
      read_evaluation(path("broken.eval"));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
      return error.what();
    }
    return "";
  }

 private:
  fs::path folder_;
};

TEST_F(EvaluateTest, EveryItemHasItsResult) {
  const auto asked = target();
  const Evaluation result = run(*asked, "base.eval");
  ASSERT_TRUE(result.is_complete);
  ASSERT_EQ(result.items.size(), 7U);
  const EvaluatedItem* a = result.find("stories", "a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->tokens.size(), a->logprobs.size());
  EXPECT_FALSE(a->answer.empty());
  EXPECT_EQ(a->prompt_sha256.size(), 64U);
  EXPECT_FALSE(result.find("stories", "b")->is_right);
  EXPECT_TRUE(result.find("stories", "c")->reference_logprob.has_value());
  EXPECT_TRUE(result.find("stories", "d")->is_critical);
  const EvaluatedItem* x = result.find("words", "x");
  ASSERT_EQ(x->choice_logprobs.size(), 3U);
  EXPECT_EQ(x->right_choice, 0);
  const EvaluatedItem* p = result.find("prose", "p");
  ASSERT_GT(p->positions.size(), 20U);
  for (const TextPosition& position : p->positions) {
    ASSERT_EQ(position.best.size(), 128U);
    EXPECT_GE(position.best[0].second, position.best[127].second);
  }
  EXPECT_EQ(result.find("prose", "nobody"), nullptr);
}

TEST_F(EvaluateTest, ChoicesAreTheSumsOfScoredIds) {
  const auto asked = target();
  const Evaluation result = run(*asked, "base.eval");
  EngineOptions options;
  options.threads = 1;
  const auto engine = Engine::load(shipped_model(), scoring_options(256, options));
  const Tokenizer tokenizer = open_tokenizer(Checkpoint::open(shipped_model()));
  const std::string prompt = "The sun is";
  const std::vector<int32_t> context = tokenizer.encode(prompt, true);
  const std::vector<std::string> choices = {" bright today and warm", " zx", " of"};
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::vector<int32_t> ids = tokenizer.encode(prompt + choices[i], true);
    const TokenScores scores = score_tokens(*engine, ids, {.first = context.size()});
    double sum = 0;
    for (const double logprob : scores.logprobs) sum += logprob;
    EXPECT_EQ(result.find("words", "x")->choice_logprobs[i], sum) << choices[i];
  }
}

TEST_F(EvaluateTest, TheSameBitsHoweverItIsAsked) {
  const auto plain = target(1, 1, 64);
  const auto expected = digests(run(*plain, "plain.eval"));
  fs::create_directories(path("logs"));
  const std::pair<const char*, std::unique_ptr<EvaluationTarget>> others[] = {
      {"several at once", target(4, 1, 64)},
      {"two threads", target(2, 2, 64)},
      {"small steps", target(3, 1, 7)},
      {"audited", target(3, 1, 64, path("logs"))},
      {"speculated", target(3, 1, 64, "", "ngram")},
  };
  for (const auto& [name, other] : others) {
    EXPECT_EQ(digests(run(*other, std::string(name) + ".eval")), expected) << name;
  }
  EXPECT_TRUE(fs::exists(path("logs/stories.a.vtr")));
  EXPECT_EQ(verify_vtr(path("logs/stories.a.vtr")).seal, VtrReport::Seal::kComplete);
}

TEST_F(EvaluateTest, ARunThatWasCutOffIsGoneOnWith) {
  const auto asked = target();
  const auto expected = digests(run(*asked, "whole.eval"));
  EvaluationOptions stops;
  size_t told = 0;
  stops.on_progress = [&](const EvaluationProgress& progress) {
    EXPECT_EQ(progress.total, 7U);
    return ++told < 4;
  };
  EXPECT_FALSE(evaluate(suite(), *asked, path("cut.eval"), stops));
  EXPECT_FALSE(read_evaluation(path("cut.eval")).is_complete);
  // The last line was being written when the process died.
  const std::string text = read("cut.eval");
  write("cut.eval", text.substr(0, text.size() - 9));
  told = 0;
  size_t before = 0;
  EvaluationOptions goes_on;
  goes_on.on_progress = [&](const EvaluationProgress& progress) {
    if (told++ == 0) before = progress.done;
    return true;
  };
  EXPECT_TRUE(evaluate(suite(), *asked, path("cut.eval"), goes_on));
  EXPECT_GT(before, 0U);
  EXPECT_LT(before, 7U);
  EXPECT_EQ(digests(read_evaluation(path("cut.eval"))), expected);
  // Where all is there, nothing is asked again.
  const std::string whole = read("cut.eval");
  EXPECT_TRUE(evaluate(suite(), *asked, path("cut.eval")));
  EXPECT_EQ(read("cut.eval"), whole);
}

TEST_F(EvaluateTest, OneFileHasOneWriter) {
  const auto asked = target(), other = target();
  const Suite asked_suite = suite();
  int refused = 0;
  EvaluationOptions options;
  options.on_progress = [&](const EvaluationProgress&) {
    for (const bool overwrite : {false, true}) {
      try {
        evaluate(asked_suite, *other, path("shared.eval"), {.overwrite = overwrite});
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find("another evaluation is writing it"),
                  std::string::npos);
        ++refused;
      }
    }
    return true;
  };
  EXPECT_TRUE(evaluate(asked_suite, *asked, path("shared.eval"), options));
  EXPECT_EQ(refused, 2 * 8);  // at the start, and behind each of seven items
  EXPECT_EQ(read_evaluation(path("shared.eval")).items.size(), 7);
  EXPECT_TRUE(evaluate(asked_suite, *other, path("shared.eval"), {.overwrite = true}));
}

TEST_F(EvaluateTest, AnotherRunIsNotOverwritten) {
  const auto asked = target();
  run(*asked, "base.eval");
  const std::string before = read("base.eval");
  const auto other = target(3, 1, 64, "", "ngram");  // facts tell the drafter
  const auto refused = [&](const std::string& name) {
    try {
      evaluate(suite(), *other, path(name));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused("base.eval"),
            path("base.eval") +
                ": holds results of another suite, model or other options; expected a file that is "
                "not there, or to overwrite it");
  EXPECT_EQ(read("base.eval"), before);
  write("letter.txt", "Dear reader,\n");
  EXPECT_NE(refused("letter.txt").find("letter.txt, line 1"), std::string::npos);
  EXPECT_EQ(read("letter.txt"), "Dear reader,\n");
  EvaluationOptions overwrites;
  overwrites.overwrite = true;
  EXPECT_TRUE(evaluate(suite(), *other, path("base.eval"), overwrites));
  EXPECT_EQ(read_evaluation(path("base.eval")).items.size(), 7U);
}

TEST_F(EvaluateTest, ResultsThatLieAreRefused) {
  const auto asked = target();
  run(*asked, "base.eval");
  const std::string text = read("base.eval");
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 9U);
  const auto with = [&](size_t at, const std::string& from, const std::string& to) {
    std::vector<std::string> changed = lines;
    const size_t place = changed[at].find(from);
    EXPECT_NE(place, std::string::npos) << from;
    changed[at].replace(place, from.size(), to);
    std::string joined;
    for (const std::string& line : changed) joined += line + "\n";
    return refusal(joined);
  };
  const std::string file = path("broken.eval");
  EXPECT_EQ(refusal(""), file + ": has no whole line; expected the results of `vitrine eval`");
  EXPECT_NE(refusal("[1, 2]\n").find("line 1"), std::string::npos);
  EXPECT_EQ(with(0, "\"vitrine_eval\":1", "\"vitrine_eval\":2"),
            file + ", line 1: 'vitrine_eval' is 2; expected 1");
  EXPECT_EQ(with(0, "\"kind\":\"answer\"", "\"kind\":\"song\""),
            file + ", line 1: 'kind' is 'song'; expected answer, choice or text");
  EXPECT_NE(with(1, "\"choice_logprobs\":\"", "\"choice_logprobs\":\"!")
                .find("'choice_logprobs' is no base64"),
            std::string::npos);
  EXPECT_NE(with(1, "\"prompt_sha256\":\"", "\"prompt_sha256\":\"0").find("the line was changed"),
            std::string::npos);
  EXPECT_NE(with(1, "\"score\":", "\"score\":7").find("'score' is"), std::string::npos);
  EXPECT_NE(with(1, "\"right\":", "\"right\":5,\"x\":").find("'right' is 5"), std::string::npos);
  EXPECT_NE(with(1, "\"task\":\"words\"", "\"task\":\"none\"").find("'task' is 'none'"),
            std::string::npos);
  EXPECT_NE(refusal(text + lines[1] + "\n").find("already; expected each once"), std::string::npos);
  // Each of its beginnings is a part of a run, or refused; none ends the process.
  for (size_t size = 0; size < text.size(); size += 997) {
    write("part.eval", text.substr(0, size));
    try {
      EXPECT_FALSE(read_evaluation(path("part.eval")).is_complete) << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    }
  }
}

TEST_F(EvaluateTest, AnItemsOwnFaultStaysWithIt) {
  write("stories.jsonl", std::string(kStories) + "{\"id\": \"long\", \"prompt\": \"" +
                             std::string(4000, 'a') + "\", \"answer\": [\"the\"]}\n");
  const auto asked = target();
  const Evaluation result = run(*asked, "base.eval");
  EXPECT_TRUE(result.is_complete);
  const EvaluatedItem* item = result.find("stories", "long");
  ASSERT_NE(item, nullptr);
  EXPECT_EQ(item->stop, "error");
  EXPECT_FALSE(item->error.empty());
  EXPECT_FALSE(item->is_right);
  EXPECT_TRUE(result.find("stories", "a")->error.empty());
}

}  // namespace
}  // namespace vitrine::testing
