// SPDX-License-Identifier: Apache-2.0
// fuzz_constrain SECONDS [SEED]: mutates schemas, patterns, grammars and tags, compiles them, and
// walks along random allowed tokens.
//
// Every outcome must be success or vitrine::Error with one line; a mask that disagrees with
// accept(), or a dead end, ends with 1 and the iteration. Meant for a build with AddressSanitizer
// and UBSan.
#include <stdexcept>

#include "tests/support/fuzz.h"
#include "tests/support/mutator.h"
#include "vitrine/constrain.h"

namespace {

using namespace vitrine;

const std::vector<std::string> kSchemas = {
    R"({"type":"object","properties":{"a":{"type":"integer","minimum":0},"b":{"enum":["x","y",1,null]}},"required":["a"],"additionalProperties":false})",
    R"({"oneOf":[{"type":"string","pattern":"^a+$"},{"type":"array","items":{"$ref":"#"},"maxItems":3}]})",
    R"({"$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}},"minProperties":1}},"anyOf":[{"$ref":"#/$defs/n"},{"const":{"k":[1,2.5,"\u00e9"]}}]})",
    R"({"type":"object","patternProperties":{"^[a-c]{1,3}$":{"type":"number","multipleOf":0.5}},"additionalProperties":false,"maxProperties":4})",
    R"({"if":{"properties":{"k":{"const":"v"}}},"then":{"required":["w"]},"else":{"not":{"required":["w"]}},"type":"object"})",
    R"({"type":"array","items":{"type":["string","boolean"]},"uniqueItems":true,"minItems":2})",
    R"({"type":"array","contains":{"const":3},"prefixItems":[{"type":"null"}]})",
    R"({"type":"string","format":"date-time","maxLength":40})",
    R"({"type":"array","uniqueItems":true,"prefixItems":[{"enum":["a","b"]}],"items":{"properties":{"z":{"type":"null"},"a":{"not":{"uniqueItems":true}}},"required":["a"]},"minItems":2})",
    R"({"$id":"http://x/r","$dynamicAnchor":"n","anyOf":[{"$ref":"t"},{"properties":{"b":{"const":1}}}],"unevaluatedProperties":false,"$defs":{"t":{"$id":"t","$dynamicAnchor":"n","properties":{"c":{"prefixItems":[{"$dynamicRef":"#n"}],"contains":{"type":"null"},"unevaluatedItems":false}}}}})"};

const std::vector<std::string> kPatterns = {
    R"(^([a-z]+|\d{2,4})(-[^x-z\s]*)?$)", R"(^(?!foo)\w{1,20}$)", R"((a|b)*c\u{41}\x42[\]\-]$)",
    R"(\p{Lu}\.(?=x).+|^$)", R"(\b(?<!x{1,3}|^)[^-]+(?:(?<=[a-c])\B.){1,2}(?<!-)$)"};

const std::vector<std::string> kGrammars = {
    "root ::= root \"+\" term | term\nterm ::= [0-9]{1,3} | \"(\" root \")\"\n",
    "%import common.INT\n%ignore \" \"\nstart: sum\nsum: INT | sum (\"+\" | \"-\"i) INT~1..3\n",
    "start: X %json {\"type\": \"array\", \"items\": {\"type\": \"null\"}} [Y]\nX: /a+/i "
    "\"b\"..\"d\"\n"
    "Y[lazy]: /(.|\\n)*/ \"end\"\n"};

const std::vector<std::string> kTags = {
    R"({"tags":[{"begin":"<t>","schema":{"type":"object","maxProperties":1},"end":"</t>"},{"begin":"<u","regex":"a*","end":["b","c"]}],"triggers":["<t","<u"]})",
    R"({"type":"structural_tag","format":{"type":"sequence","elements":[{"type":"any_text","excludes":["x"]},{"type":"tag","begin":"x","content":{"type":"or","elements":[{"type":"const_string","value":"a"},{"type":"json_schema","json_schema":{"enum":[1,[2]]}}]},"end":""},{"type":"repeat","min":0,"max":3,"content":{"type":"regex","pattern":"a|bc"}}]}})"};

TokenTable table_of_bytes() {
  std::vector<std::string> bytes(1);
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* more : {"\":", "\", \"", "{\"", "], ", "true", "12", "\"a\"", "}, "})
    bytes.emplace_back(more);
  return TokenTable::from_bytes(std::move(bytes), {0});
}

void walk(const Grammar& grammar, const TokenTable& table, testing::Mutator& random) {
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  for (int step = 0; step < 60; ++step) {
    if (!constraint->allowed_tokens(mask)) throw std::runtime_error("a dead end");
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < table.vocab_size(); ++id) {
      if (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) allowed.push_back(id);
    }
    const int32_t any = static_cast<int32_t>(random.below(static_cast<size_t>(table.vocab_size())));
    const bool in_mask = mask[static_cast<size_t>(any) / 32] >> (any % 32) & 1;
    const bool accepted = constraint->accept(any);
    if (accepted != in_mask) throw std::runtime_error("the mask and accept() disagree");
    if (accepted) constraint->rollback(1);
    if (random.below(8) == 0 && constraint->state().num_bytes < step) {
      throw std::runtime_error("a state that has read too little");
    }
    const int32_t id = allowed[random.below(allowed.size())];
    if (!constraint->accept(id)) throw std::runtime_error("an allowed token is refused");
    if (id == 0) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_fuzz(argc, argv, "fuzz_constrain", "grammars", [](uint64_t seed) {
    auto table = std::make_shared<TokenTable>(table_of_bytes());
    auto random = std::make_shared<testing::Mutator>(
        seed,
        std::vector<std::string>{R"("object")", R"("integer")", R"("a")", R"("^a|b$")", R"("#")",
                                 R"("#/$defs/n")", R"("allOf")", R"("not")", R"("uri")"});
    testing::FuzzTarget target;
    const std::vector<std::string>* all[] = {&kSchemas, &kGrammars, &kTags, &kPatterns};
    std::vector<std::pair<size_t, std::string>> healthy;  // by kind
    for (size_t kind = 0; kind < 4; ++kind) {
      for (const std::string& text : *all[kind]) healthy.emplace_back(kind, text);
    }
    target.num_healthy = static_cast<long>(healthy.size());
    target.run = [table, random, healthy](long iteration) -> std::optional<bool> {
      const auto& [kind, seed_text] = healthy[static_cast<size_t>(iteration) % healthy.size()];
      testing::Files files = {{"schema.json", seed_text}};
      if (iteration >= static_cast<long>(healthy.size())) random->mutate(files);
      if (files.empty()) return std::nullopt;
      const std::string& text = files.begin()->second;
      try {
        SchemaOptions options;
        options.max_states = 50000;
        options.max_alternatives = 64;
        if (iteration % 2 != 0) options.key_order = JsonKeyOrder::kSchema;
        GrammarOptions grammar_options;
        grammar_options.max_states = 50000;
        grammar_options.max_items = 20000;
        grammar_options.schema = options;
        const bool is_lark = grammar_notation(text) == GrammarNotation::kLark;
        const Grammar grammar = kind == 0   ? Grammar::json_schema(*table, text, options)
                                : kind == 2 ? Grammar::tags(*table, text, grammar_options)
                                : kind == 3 ? Grammar::regex(*table, text)
                                : is_lark   ? Grammar::lark(*table, text, grammar_options)
                                            : Grammar::gbnf(*table, text, grammar_options);
        walk(grammar, *table, *random);
        return true;
      } catch (const Error& error) {
        testing::check_message(error);
        return false;
      }
    };
    return target;
  });
}
