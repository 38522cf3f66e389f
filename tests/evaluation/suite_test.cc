// SPDX-License-Identifier: Apache-2.0
// Suites: what is read of them, and one clear message for each that is broken.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "evaluation/item.h"
#include "evaluation/suite_items.h"

namespace vitrine::evaluation {
namespace {

/// A folder with a suite, which goes away with this.
class SuiteFolder {
 public:
  SuiteFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "suite-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~SuiteFolder() { std::filesystem::remove_all(path_); }
  SuiteFolder(const SuiteFolder&) = delete;
  SuiteFolder& operator=(const SuiteFolder&) = delete;

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }
  std::string path(const std::string& name = "suite.toml") const { return path_ + "/" + name; }

  /// Opens the suite of these tables; what its error says, without the folder.
  std::string error_of(const std::string& toml, const SuiteOptions& options = {}) const {
    write("suite.toml", toml);
    try {
      Suite::open(path(), options);
      return "no error";
    } catch (const Error& error) {
      std::string text = error.what();
      size_t at = 0;
      while ((at = text.find(path_ + "/")) != std::string::npos) text.erase(at, path_.size() + 1);
      return text;
    }
  }

 private:
  std::string path_;
};

const std::string kHead = "[suite]\nname = 'mine'\nversion = '1'\nseed = 3\n";
const std::string kTask =
    "[[task]]\nname = 'sums'\ndomain = 'logic'\nkind = 'answer'\nscorer = 'number'\n"
    "items = 'items.jsonl'\nlicence = 'CC0-1.0'\nsource = 'here'\n";
const std::string kItems =
    "{\"id\": \"a\", \"question\": \"1 + 1\", \"answer\": 2}\n\n"
    "{\"id\": \"b\", \"question\": \"2 + 2\", \"answer\": 4, \"critical\": true}\n"
    "{\"id\": \"c\", \"question\": \"3 + 3\", \"answer\": 6, \"group\": \"g\"}\n";
const std::string kTemplate = "template = 'What is {question}?'\n";

TEST(SuiteOpen, ReadsTasksAndItems) {
  const SuiteFolder folder;
  folder.write("items.jsonl", kItems);
  folder.write("suite.toml", kHead + kTask + kTemplate + "critical = ['c']\nmax_new_tokens = 9\n" +
                                 "text_template = 'Q: {question}'\n");
  const Suite suite = Suite::open(folder.path());
  EXPECT_EQ(suite.name(), "mine");
  EXPECT_EQ(suite.version(), "1");
  ASSERT_EQ(suite.tasks().size(), 1U);
  EXPECT_EQ(suite.tasks()[0].num_items, 3U);
  EXPECT_EQ(suite.tasks()[0].licence, "CC0-1.0");
  EXPECT_EQ(suite.tasks()[0].kind, TaskKind::kAnswer);
  const Task& task = suite.data().tasks[0];
  EXPECT_EQ(task.options["max_new_tokens"], 9);
  EXPECT_EQ(task.options["form"], "conversation");
  EXPECT_EQ(task.options["temperature"], 0.0);
  EXPECT_EQ(task.options["seed"], 3);
  EXPECT_EQ(task.items[0].data["prompt"], "What is 1 + 1?");
  EXPECT_EQ(task.items[0].data["plain_prompt"], "Q: 1 + 1");
  EXPECT_FALSE(task.items[0].is_critical);
  EXPECT_TRUE(task.items[1].is_critical);
  EXPECT_TRUE(task.items[2].is_critical);
  EXPECT_EQ(task.items[2].group, "g");
}

TEST(SuiteOpen, DigestCoversAllThatIsAsked) {
  const SuiteFolder folder;
  std::set<std::string> digests;
  const auto add = [&](const std::string& toml, const std::string& items,
                       const SuiteOptions& options = {}) {
    folder.write("items.jsonl", items);
    folder.write("suite.toml", toml);
    digests.insert(Suite::open(folder.path(), options).digest());
  };
  add(kHead + kTask + kTemplate, kItems);
  add(kHead + kTask + kTemplate, kItems + "\n");  // the same
  EXPECT_EQ(digests.size(), 1U);
  add(kHead + kTask + "template = 'How much is {question}?'\n", kItems);
  add(kHead + kTask + kTemplate + "temperature = 0.5\n", kItems);
  add(kHead + kTask + kTemplate, kItems, {.items = 2});
  add("[suite]\nname = 'mine'\nversion = '2'\nseed = 3\n" + kTask + kTemplate, kItems);
  std::string other = kItems;
  other.replace(other.find("4,"), 1, "5");
  add(kHead + kTask + kTemplate, other);
  EXPECT_EQ(digests.size(), 6U);
  EXPECT_EQ(digests.begin()->size(), 64U);
}

TEST(SuiteOpen, ChoosesItemsByTheirOrder) {
  const SuiteFolder folder;
  std::string items;
  for (int i = 0; i < 50; ++i) {
    items += "{\"id\": \"i" + std::to_string(i) + "\", \"prompt\": \"x\", \"answer\": 1" +
             (i == 40 ? ", \"critical\": true}\n" : "}\n");
  }
  folder.write("items.jsonl", items);
  folder.write("suite.toml", kHead + kTask + "count = 5\n");
  const auto ids = [&](const SuiteOptions& options) {
    std::vector<std::string> found;
    const Suite suite = Suite::open(folder.path(), options);
    for (const Item& item : suite.data().tasks[0].items) found.push_back(item.id);
    return found;
  };
  const std::vector<std::string> five = ids({});
  // Pinned: the order depends on seed, task and id, and on no machine.
  EXPECT_EQ(five, (std::vector<std::string>{"i3", "i26", "i35", "i40", "i49"}));
  const std::vector<std::string> seven = ids({.items = 7});
  EXPECT_EQ(seven.size(), 7U);
  for (const std::string& id : five) EXPECT_NE(std::ranges::find(seven, id), seven.end());
  EXPECT_EQ(ids({.items = -1}).size(), 50U);
  EXPECT_EQ(ids({.items = 1}), std::vector<std::string>{"i40"});  // the critical one
}

TEST(SuiteOpen, LeavesOutWhatIsNotFetched) {
  const SuiteFolder folder;
  folder.write("items.jsonl", kItems);
  const std::string text = kItems;
  const std::string fetched =
      "[[task]]\nname = 'far'\ndomain = 'logic'\nkind = 'answer'\nscorer = 'number'\n"
      "fetched = 'far.jsonl'\nlicence = 'MIT'\nsource = 'there'\ntemplate = '{question}'\n"
      "sha256 = '" +
      sha256_of_text(text) + "'\n";
  folder.write("suite.toml", kHead + kTask + kTemplate + fetched);
  SuiteOptions options;
  options.folder = folder.path("fetched");
  const Suite without = Suite::open(folder.path(), options);
  EXPECT_EQ(without.tasks()[1].left_out,
            "it is not fetched; this does it: python3 bench/fetch_suite.py far");
  EXPECT_EQ(without.tasks()[1].num_items, 0U);
  std::filesystem::create_directory(options.folder);
  folder.write("fetched/far.jsonl", text);
  const Suite with = Suite::open(folder.path(), options);
  EXPECT_EQ(with.tasks()[1].left_out, "");
  EXPECT_EQ(with.tasks()[1].num_items, 3U);
  EXPECT_NE(with.digest(), without.digest());
  folder.write("fetched/far.jsonl", text + " ");
  EXPECT_NE(folder.error_of(kHead + kTask + kTemplate + fetched, options).find("its SHA-256 is "),
            std::string::npos);
  std::filesystem::remove(folder.path("fetched/far.jsonl"));
  EXPECT_EQ(folder.error_of(kHead + fetched, options),
            "suite.toml: nothing is left to ask: task 'far': it is not fetched; this does it: "
            "python3 bench/fetch_suite.py far");
}

TEST(SuiteOpen, RefusesWhatChoosesNothing) {
  const SuiteFolder folder;
  folder.write("items.jsonl", kItems);
  const std::string toml = kHead + kTask + kTemplate;
  EXPECT_EQ(folder.error_of(toml, {.tasks = {"nothing"}}),
            "the suite has no task or domain 'nothing'; expected sums");
  EXPECT_EQ(folder.error_of(toml, {.tasks = {"logic"}}), "no error");
  EXPECT_EQ(folder.error_of(toml, {.items = -2}), "items is -2; expected -1 (all), 0 or more");
  EXPECT_EQ(folder.error_of(toml, {.longest = -1}),
            "longest is -1; expected 0 or a number of tokens");
  const std::string made =
      "[[task]]\nname = 'vt'\ndomain = 'recall'\nkind = 'answer'\nscorer = 'contains'\n"
      "maker = 'vt'\nlengths = [512]\n";
  EXPECT_EQ(folder.error_of(kHead + made, {.longest = 100}),
            "suite.toml: nothing is left to ask: task 'vt': none of its lengths is within 100 "
            "tokens");
  try {
    Suite::open("/nowhere/suite.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(error.what(),
                 "'/nowhere/suite.toml' is neither a file nor a built-in suite; expected a suite's "
                 "TOML file or core");
  }
}

TEST(SuiteOpen, NamesWhatIsWrongWithTheTable) {
  const SuiteFolder folder;
  folder.write("items.jsonl", kItems);
  const std::string task = kTask + kTemplate;
  const auto with = [&](const std::string& line) { return folder.error_of(kHead + task + line); };
  EXPECT_EQ(folder.error_of("x = ["),
            "suite.toml: line 1: Error while parsing array: encountered "
            "end-of-file; expected TOML 1.0");
  EXPECT_EQ(folder.error_of(task),
            "suite.toml: 'suite' is missing; expected a table with 'name' and 'version'");
  EXPECT_EQ(folder.error_of("[suite]\nname = 'x'\n" + task),
            "suite.toml: [suite]: 'version' is missing; expected a text");
  EXPECT_EQ(folder.error_of(kHead),
            "suite.toml: 'task' is missing; expected tables [[task]], at least one");
  EXPECT_EQ(with("chance = 2\n"),
            "suite.toml: [[task]] 'sums': 'chance' is 2; expected a number from 0.0 to 1.0");
  EXPECT_EQ(with("chance = nan\n").substr(0, 41), "suite.toml: [[task]] 'sums': 'chance' is ");
  EXPECT_EQ(with("lengths = [5]\n").substr(0, 65),
            "suite.toml: [[task]] 'sums': there is no field 'lengths'; expecte");
  EXPECT_EQ(with("max_new_tokens = 0\n"),
            "suite.toml: [[task]] 'sums': 'max_new_tokens' is 0; expected a whole number from 1 to "
            "65536");
  EXPECT_EQ(
      with("constrain = 'words'\n"),
      "suite.toml: [[task]] 'sums': 'constrain' is 'words'; expected schema, tools, calls or none");
  EXPECT_EQ(with("stop = ['a', 5]\n"),
            "suite.toml: [[task]] 'sums': 'stop[1]' is 5; expected a text");
  EXPECT_EQ(with("maker = 'vt'\n"),
            "suite.toml: [[task]] 'sums': it has 2 of 'items', 'fetched' and 'maker'; expected one "
            "of them");
  EXPECT_EQ(with("sha256 = 'abc'\n"),
            "suite.toml: [[task]] 'sums': 'sha256' is 'abc'; expected 64 digits of 0 to 9 and a to "
            "f");
  EXPECT_EQ(with("critical = ['z']\n"),
            "items.jsonl: 'critical' names 'z'; expected the id of an item");
  EXPECT_EQ(folder.error_of(kHead + task + task),
            "suite.toml: [[task]] 'sums': the name stands twice; expected each once");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = kHead + task;
    other.replace(other.find(from), from.size(), to);
    return folder.error_of(other);
  };
  EXPECT_EQ(changed("'sums'", "'Sums!'"),
            "suite.toml: [[task]] 1: 'name' is 'Sums!'; expected 1 to 64 small letters, digits, _ "
            "and -");
  EXPECT_EQ(changed("'logic'", "'cooking'"),
            "suite.toml: [[task]] 'sums': 'domain' is 'cooking'; expected logic, schema, recall, "
            "safety or text");
  EXPECT_EQ(changed("'number'", "'taste'").substr(0, 55),
            "suite.toml: [[task]] 'sums': 'scorer' is 'taste'; expec");
  EXPECT_EQ(changed("'items.jsonl'", "'../items.jsonl'"),
            "suite.toml: [[task]] 'sums': 'items' is '../items.jsonl'; expected a file's name "
            "within the suite's folder");
  EXPECT_EQ(changed("'items.jsonl'", "'other.jsonl'"),
            "suite.toml: [[task]] 'sums': 'items' is 'other.jsonl', where nothing is; expected a "
            "file");
  EXPECT_EQ(changed("licence = 'CC0-1.0'\n", ""),
            "suite.toml: [[task]] 'sums': 'licence' is missing; expected a text");
  EXPECT_EQ(changed("{question}", "{queston}"),
            "items.jsonl: line 1: item 'a': 'queston' is missing; expected a text or a number, "
            "which the template names");
}

TEST(SuiteOpen, NamesWhatIsWrongWithItems) {
  const SuiteFolder folder;
  const auto with = [&](const std::string& lines) {
    folder.write("items.jsonl", lines);
    return folder.error_of(kHead + kTask);
  };
  EXPECT_EQ(with("\n"), "items.jsonl: no item; expected one a line");
  EXPECT_EQ(with("\n{\"id\": \"a\",}\n"),
            "items.jsonl: line 2: invalid JSON at byte 12 of 12; expected a JSON object");
  EXPECT_EQ(with("[1]"), "items.jsonl: line 1: found a list; expected a JSON object, an item");
  EXPECT_EQ(with("{\"prompt\": \"x\", \"answer\": 1}"),
            "items.jsonl: line 1: 'id' is missing; expected a text");
  EXPECT_EQ(with("{\"id\": \"a\", \"id\": \"b\"}"),
            "items.jsonl: line 1: the key 'id' stands twice in one object; expected it once");
  EXPECT_EQ(with("{\"id\": \"\", \"prompt\": \"x\", \"answer\": 1}"),
            "items.jsonl: line 1: 'id' is ''; expected 1 to 200 bytes without control characters");
  const std::string a = "{\"id\": \"a\", \"prompt\": \"x\", \"answer\": 1}\n";
  EXPECT_EQ(with(a + a),
            "items.jsonl: line 2: the id 'a' stands in line 1 too; expected each once");
  EXPECT_EQ(with("{\"id\": \"a\", \"prompt\": \"x\"}"),
            "items.jsonl: line 1: item 'a': 'answer' is missing; expected a number");
  EXPECT_EQ(with("{\"id\": \"a\", \"prompt\": \"x\", \"answer\": \"none\"}"),
            "items.jsonl: line 1: item 'a': 'answer' is 'none'; expected a number");
  EXPECT_EQ(with("{\"id\": \"a\", \"answer\": 1}"),
            "items.jsonl: line 1: item 'a': 'prompt' is missing; expected a text");
  EXPECT_EQ(with("{\"id\": \"a\", \"prompt\": \"x\", \"answer\": 1, \"anwser\": 1}").substr(0, 62),
            "items.jsonl: line 1: item 'a': there is no field 'anwser'; exp");
  EXPECT_EQ(with("{\"id\": \"a\", \"prompt\": \"\xFF\", \"answer\": 1}"),
            "items.jsonl: line 1: bytes that are no UTF-8; expected UTF-8");
  EXPECT_EQ(with("{\"id\": " + std::string(100, '[') + std::string(100, ']') + "}"),
            "items.jsonl: line 1: JSON is nested deeper than 64 levels; expected a plain object");
  EXPECT_EQ(with("{\"id\": \"" + std::string(9 << 20, 'a') + "\"}"),
            "items.jsonl: line 1: an item of 9437194 bytes; expected at most 8388608");
  EXPECT_EQ(with("{\"id\": \"a\", \"messages\": [5], \"answer\": 1}"),
            "items.jsonl: line 1: item 'a': 'messages' has 5; expected objects with a 'role'");
}

TEST(SuiteOpen, NamesWhatIsWrongWithChoicesAndTexts) {
  const SuiteFolder folder;
  const auto error_of = [&](const std::string& kind, const std::string& line) {
    folder.write("items.jsonl", line);
    return folder.error_of(kHead + "[[task]]\nname = 't'\ndomain = 'text'\nkind = '" + kind +
                           "'\nitems = 'items.jsonl'\nlicence = 'CC0-1.0'\nsource = 'here'\n");
  };
  const std::string begin = "{\"id\": \"a\", \"prompt\": \"x\", ";
  EXPECT_EQ(error_of("choice", begin + "\"choices\": [\"a\", \"b\"], \"answer\": 1}"), "no error");
  EXPECT_EQ(error_of("choice", begin + "\"choices\": [\"a\"], \"answer\": 0}"),
            "items.jsonl: line 1: item 'a': 'choices' is a list; expected a list of at least two "
            "texts");
  EXPECT_EQ(error_of("choice", begin + "\"choices\": [\"a\", \"a\"], \"answer\": 0}"),
            "items.jsonl: line 1: item 'a': 'choices' has 'a' twice; expected it once");
  EXPECT_EQ(error_of("choice", begin + "\"choices\": [\"a\", \"b\"], \"answer\": 2}"),
            "items.jsonl: line 1: item 'a': 'answer' is 2; expected a whole number from 0 to 1");
  EXPECT_EQ(error_of("text", "{\"id\": \"a\", \"text\": \"\"}"),
            "items.jsonl: line 1: item 'a': 'text' is empty; expected a text");
  EXPECT_EQ(error_of("text", "{\"id\": \"a\", \"text\": \"abc\", \"scored_from\": 3}"),
            "items.jsonl: line 1: item 'a': 'scored_from' is 3; expected the beginning of one of "
            "the text's 3 bytes, of a character");
}

TEST(CoreSuite, OpensWithoutTheTree) {
  SuiteOptions options;
  options.folder = "/nonexistent";
  const Suite suite = Suite::open("core", options);
  EXPECT_EQ(suite.name(), "core");
  std::set<std::string> domains;
  size_t items = 0;
  for (const SuiteTask& task : suite.tasks()) {
    domains.insert(task.domain);
    items += task.num_items;
    EXPECT_EQ(task.num_items == 0, !task.left_out.empty()) << task.name;
    EXPECT_FALSE(task.licence.empty());
  }
  EXPECT_EQ(domains, (std::set<std::string>{"logic", "recall", "safety", "schema", "text"}));
  EXPECT_EQ(items, 324U);
  // Pinned: what is asked is the same on every machine.
  EXPECT_EQ(suite.digest(), "bb3617a96384067eba9f7dca5de4a4d824701d16db96a581a2674aa3b866bc51");
}

TEST(CoreSuite, HasALargerFixedSet) {
  SuiteOptions options;
  options.folder = "/nonexistent";
  options.items = -1;
  options.longest = 2048;
  const Suite suite = Suite::open("core", options);
  size_t items = 0;
  for (const SuiteTask& task : suite.tasks()) items += task.num_items;
  EXPECT_GT(items, 2000U);
}

}  // namespace
}  // namespace vitrine::evaluation
