// SPDX-License-Identifier: Apache-2.0
// Made-up records told in a sentence or two, whose fields are asked for as JSON by a schema, or as
// XML.
#include <algorithm>

#include "evaluation/fields.h"
#include "evaluation/makers/words.h"

namespace vitrine::evaluation {

namespace {

const Json kRecordSchema = Json::parse(R"({
  "type": "object",
  "properties": {
    "name": {"type": "string"},
    "age": {"type": "integer"},
    "city": {"type": "string"},
    "plan": {"type": "string", "enum": ["basic", "plus", "premium"]},
    "newsletter": {"type": "boolean"},
    "items": {"type": "array", "items": {"type": "string"}}
  },
  "required": ["name", "age", "city", "plan", "newsletter", "items"],
  "additionalProperties": false
})");

struct Record {
  std::string told;
  Json fields;
};

Record make_record(Random& random) {
  const std::string name = random.choose(first_names());
  const int64_t age = random.between(18, 90);
  const std::string city = random.choose(cities());
  const std::string plan = random.choose(std::vector<std::string>{"basic", "plus", "premium"});
  const bool has_newsletter = random.below(2) == 0;
  std::vector<std::string> things = nouns();
  random.shuffle(things);
  things.resize(2);
  const std::string list = "a " + things[0] + " and a " + things[1];
  const std::string news = has_newsletter ? "would like the newsletter" : "wants no newsletter";
  const std::vector<std::string> tellings = {
      name + " from " + city + " is " + std::to_string(age) + " years old, has the " + plan +
          " plan and " + news + ". The order: " + list + ".",
      "An order of " + list + " came in. The customer, " + name + ", aged " + std::to_string(age) +
          ", lives in " + city + ", " + news + " and pays for the " + plan + " plan.",
      "On the " + plan + " plan: " + name + " (" + std::to_string(age) + "), " + city + ", who " +
          news + " and bought " + list + "."};
  return {random.choose(tellings),
          {{"name", name},
           {"age", age},
           {"city", city},
           {"plan", plan},
           {"newsletter", has_newsletter},
           {"items", things}}};
}

Json make_json_record(Random& random) {
  const Record record = make_record(random);
  return {
      {"prompt",
       record.told +
           "\n\nWrite this customer as one JSON object with the fields \"name\" (text), \"age\" "
           "(number), \"city\" (text), \"plan\" (\"basic\", \"plus\" or \"premium\"), "
           "\"newsletter\" (true or false) and \"items\" (a list of the things as single "
           "words). Answer with the JSON alone."},
      {"schema", kRecordSchema},
      {"answer", record.fields}};
}

Json make_xml_record(Random& random) {
  const Record record = make_record(random);
  const Json& fields = record.fields;
  return {
      {"prompt",
       record.told +
           "\n\nWrite this customer as XML: an element <customer> with the attribute \"plan\" "
           "and the elements <name>, <age> and <city>, and for each thing bought an element "
           "such as <item>pen</item>, with the thing as a single word. Answer with the XML alone."},
      {"answer",
       {{"customer", ""},
        {"customer@plan", fields["plan"]},
        {"customer/name", fields["name"]},
        {"customer/age", std::to_string(fields["age"].get<int64_t>())},
        {"customer/city", fields["city"]},
        {"customer/item", fields["items"][0]},
        {"customer/item[2]", fields["items"][1]}}}};
}

std::vector<Item> make_records(const Json& options, uint64_t seed, int64_t count) {
  const std::string output = choice_field(options, "", "output", {"json", "xml"}, "json");
  return make_by_number(seed, count, "records/" + output, [&](Random& random, int64_t) {
    return output == "json" ? make_json_record(random) : make_xml_record(random);
  });
}

VITRINE_REGISTER_MAKER({.name = "records", .make = make_records, .options = {"output"}});

}  // namespace

}  // namespace vitrine::evaluation
