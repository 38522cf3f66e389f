// SPDX-License-Identifier: Apache-2.0
#include "evaluation/makers/words.h"

#include <algorithm>
#include <set>

#include "evaluation/fields.h"

namespace vitrine::evaluation {

namespace {

constexpr std::string_view kNouns =
    "acorn anchor apple apron arrow autumn badge bakery balcony bamboo banjo barrel basin basket "
    "beach beacon beaver bell bench berry bicycle blanket blossom boat bonnet book boot bottle "
    "branch bread brick bridge broom brush bucket butter button cabin cable cactus camel candle "
    "canoe canyon carpet carrot castle cave cedar chain chair chalk cherry chimney circle clay "
    "cliff clock cloud clover coat cobbler coin comet compass copper coral corner cottage cotton "
    "cradle crayon creek cricket crown cup curtain daisy dancer desert diamond donkey door dragon "
    "drawer drum eagle easel elbow elm ember engine envelope fabric falcon farmer feather fence "
    "fern ferry fiddle field finch flag flame flute forest fossil fountain fox frost garden garlic "
    "gate ginger glacier glass globe glove goose grain grape gravel guitar hammer harbor harp "
    "harvest hawk hazel hedge helmet heron hill honey hood horizon horse hotel island ivory ivy "
    "jacket jar jewel jungle kettle key kitchen kite kitten ladder lagoon lake lamp lantern leaf "
    "lemon library lily linen lizard lobster locket lumber magnet mango maple marble market meadow "
    "melon mill mirror mitten monkey moon mountain museum napkin needle nest nickel notebook oak "
    "oasis ocean olive onion orange orchard otter oven owl oyster paddle painter palace panda "
    "paper parrot pasture peach pearl pebble pencil pepper piano picnic pigeon pillow pine planet "
    "plaza plum pocket pond poplar potato prairie puddle pumpkin puppet quilt rabbit radish "
    "railway rainbow raven reef ribbon river robin rocket roof rope rose saddle sailor salmon "
    "sandal satin school seal shadow sheep shell shield shovel silver sketch sleigh slipper snail "
    "sparrow spider spoon spring squirrel stable star statue stone stove stream sugar summit "
    "sunset swallow sweater table tailor teapot temple thimble thistle thunder tiger timber tower "
    "train tulip tunnel turtle valley velvet village violin walnut wagon waterfall whale wheel "
    "whistle willow window winter wolf wool yacht zebra";

constexpr std::string_view kAdjectives =
    "able amber ancient arctic azure bold brave brief bright brisk broad bronze calm careful "
    "cheerful clean clever cold cool cosy crisp curious curly damp daring dark deep dense dry "
    "dusty eager early easy elegant empty even fair faint fancy fast fierce fine firm flat fluffy "
    "fond fragile free fresh friendly frosty full funny gentle giant glad golden graceful grand "
    "grateful great green handy happy hardy heavy hidden hollow honest huge humble icy jolly keen "
    "kind large lasting late lazy light little lively lonely long loud lovely lucky mellow merry "
    "mighty mild misty modest narrow neat new nimble noble odd old open pale patient plain "
    "pleasant polite proud pure quick quiet rapid rare ready rich ripe rough round royal rusty "
    "safe sandy sharp shiny short shy silent simple sleepy slim slow smart smooth soft solid sour "
    "steady steep still stormy strong sturdy sunny sweet swift tall tame tender thick thin tidy "
    "tiny tough vast warm wide wild wise witty wooden young";

constexpr std::string_view kVerbs =
    "accept adapt admire agree allow answer appear arrange arrive ask attend bake balance become "
    "begin believe borrow bounce build buy call carry catch change chase check choose climb close "
    "collect come compare cook copy count cover create cross dance decide deliver describe design "
    "dig divide draw dream drink drive earn eat enjoy enter explain explore fetch fill find finish "
    "float fly follow forget gather give grow guess hear help hide hold hope imagine improve "
    "invite join jump keep kneel knit know laugh lead learn leave lend lift listen look make "
    "measure meet mend mix move need notice offer order paint pause plan plant play point polish "
    "pour practise prepare promise pull push rake reach read receive remember repair reply rest "
    "return ride ring rise row run sail save search sell send serve share shout show sing sit "
    "skate sketch sleep smile solve speak spell spend spin stand start stay stir stop study swim "
    "taste teach think throw touch trade travel try turn visit wait wake walk wander wash watch "
    "wave wear weave win wonder work write";

constexpr std::string_view kFirstNames =
    "Ada Ben Clara David Emma Felix Grace Hugo Iris Jack Kate Leo Mia Noah Olga Paul Quinn Rosa "
    "Sam Tina Uma Victor Wendy Xavier Yara Zoe Anna Boris Celia Dora Eric Fiona Gina Henry Ivan "
    "Julia Karl Lena Martin Nina Oscar Petra Ralph Sofia Tom Vera";

constexpr std::string_view kCities =
    "Lisbon Oslo Vienna Dublin Prague Madrid Athens Turin Bergen Lyon Porto Krakow Zagreb Riga "
    "Tallinn Geneva Seville Leipzig Ghent Malmo Boston Denver Austin Toronto Kyoto Osaka Lima "
    "Nairobi Accra Perth";

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::string made_up_word(Random& random) {
  std::string word;
  const int64_t syllables = random.between(2, 3);
  for (int64_t i = 0; i < syllables; ++i) {
    word += random.text("bdfgklmnprstvz", 1) + random.text("aeiou", 1);
  }
  return word + random.text("lmnrstk", 1);
}

Item made_item(std::string id, Json data) {
  Item item;
  item.id = std::move(id);
  if (const Json* group = find_field(data, "group")) {
    item.group = group->get<std::string>();
    data.erase("group");
  }
  item.data = std::move(data);
  return item;
}

}  // namespace

const std::vector<std::string>& nouns() {
  static const std::vector<std::string> words = split_words(kNouns);
  return words;
}

const std::vector<std::string>& adjectives() {
  static const std::vector<std::string> words = split_words(kAdjectives);
  return words;
}

const std::vector<std::string>& verbs() {
  static const std::vector<std::string> words = split_words(kVerbs);
  return words;
}

const std::vector<std::string>& first_names() {
  static const std::vector<std::string> words = split_words(kFirstNames);
  return words;
}

const std::vector<std::string>& cities() {
  static const std::vector<std::string> words = split_words(kCities);
  return words;
}

std::vector<std::string> different_words(Random& random, size_t count) {
  std::set<std::string> known;
  for (const auto* list : {&nouns(), &adjectives(), &verbs()}) {
    known.insert(list->begin(), list->end());
  }
  std::vector<std::string> words(known.begin(), known.end());
  random.shuffle(words);
  while (words.size() < count) {
    std::string word = made_up_word(random);
    if (known.insert(word).second) words.push_back(std::move(word));
  }
  words.resize(count);
  return words;
}

int64_t estimated_tokens(std::string_view text) {
  constexpr int64_t kLettersOfToken = 6;
  int64_t tokens = 0;
  int64_t letters = 0;
  char before = '\0';
  for (const char byte : text) {
    const bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                           static_cast<uint8_t>(byte) >= 0x80;
    if (is_letter && letters++ % kLettersOfToken == 0) ++tokens;
    if (!is_letter) letters = 0;
    const bool is_digit = byte >= '0' && byte <= '9';
    if (!is_letter && byte != ' ') ++tokens;
    if (is_digit && before == ' ') ++tokens;
    before = byte;
  }
  return tokens;
}

int64_t largest_that_fits(int64_t least, const std::function<bool(int64_t)>& fits) {
  constexpr int64_t kMost = 10'000'000;
  int64_t low = least;
  int64_t high = least + 1;
  while (high < kMost && fits(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

std::vector<int64_t> wanted_lengths(const Json& options) {
  constexpr int64_t kMostTokens = 1 << 20;
  std::vector<int64_t> lengths = wholes_field(options, "", "lengths", 64, kMostTokens, {512});
  const int64_t longest = whole_field(options, "", "longest", 1, INT64_MAX, kMostTokens);
  std::erase_if(lengths, [&](int64_t length) { return length > longest; });
  return lengths;
}

std::vector<Item> make_by_length(
    const Json& options, uint64_t seed, int64_t count, const std::string& name,
    const std::function<Json(Random& random, int64_t length, int64_t number)>& make_one) {
  const std::vector<int64_t> lengths = wanted_lengths(options);
  std::vector<Item> items;
  for (int64_t number = 0; number < count; ++number) {
    for (const int64_t length : lengths) {
      const std::string id = std::to_string(length) + "-" + std::to_string(number);
      Random random(seed, name + "/" + id);
      Json data = make_one(random, length, number);
      data["length"] = length;
      items.push_back(made_item(id, std::move(data)));
    }
  }
  return items;
}

std::vector<Item> make_by_number(
    uint64_t seed, int64_t count, const std::string& name,
    const std::function<Json(Random& random, int64_t number)>& make_one) {
  std::vector<Item> items;
  for (int64_t number = 0; number < count; ++number) {
    const std::string id = std::to_string(number);
    Random random(seed, name + "/" + id);
    items.push_back(made_item(id, make_one(random, number)));
  }
  return items;
}

}  // namespace vitrine::evaluation
