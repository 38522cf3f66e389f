// SPDX-License-Identifier: Apache-2.0
// JSON by a schema: that it is JSON, has the required fields, types and choices, and the right
// values, each scored apart.
#include "evaluation/scorers/reading.h"
#include "evaluation/scorers/schema_shares.h"

namespace vitrine::evaluation {

namespace {

const char* const kJsonParts[] = {"valid", "bare",  "schema", "required",
                                  "types", "enums", "values"};

Score score_json(const ScoredAnswer& answer) {
  const std::string text = answer_text(answer);
  const Json& data = answer.item.data;
  const Json& right = data["answer"];
  const Json schema = data.value("schema", Json::object());
  Score score;
  for (const char* name : kJsonParts) score.parts[name] = 0;
  const std::optional<FoundJson> found = find_json(text);
  score.is_parsed = found.has_value();
  if (!found) return score;
  score.extracted = short_text(found->text);
  const SchemaShares shares = schema_shares(found->value, schema);
  const Share values = equal_leaves(found->value, right);
  const bool is_valid = is_accepted(schema.dump(), found->text);
  score.parts = {{"valid", 1},
                 {"bare", found->is_bare ? 1 : 0},
                 {"schema", is_valid ? 1 : 0},
                 {"required", shares.required.value()},
                 {"types", shares.types.value()},
                 {"enums", shares.enums.value()},
                 {"values", values.value()}};
  score.value = values.value();
  score.is_right = is_valid && values.is_whole();
  return score;
}

std::string check_json_item(const Item& item, const Json&) {
  const Json* right = find_field(item.data, "answer");
  if (right == nullptr || !right->is_structured() || right->empty()) {
    return field_problem("answer", right, "an object or a list that is not empty");
  }
  const Json schema = item.data.value("schema", Json::object());
  if (!is_accepted(schema.dump(), right->dump())) {
    return "'answer' is not as 'schema' wants it; expected a value that the schema accepts";
  }
  return {};
}

std::string expected_json(const Item& item) { return item.data["answer"].dump(); }

VITRINE_REGISTER_SCORER(
    {.name = "json", .score = score_json, .check = check_json_item, .expected = expected_json});

}  // namespace

}  // namespace vitrine::evaluation
