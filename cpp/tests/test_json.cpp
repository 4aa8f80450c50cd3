#include <limits>
#include <random>
#include <string>

#include "check.hpp"
#include "trtspec/json.hpp"

using trtspec::Json;
using trtspec::JsonWriter;

namespace {

// What parsing says, "" if it succeeds.
std::string error_of(std::string_view text) {
  try {
    Json::parse(text, "f");
    return "";
  } catch (const trtspec::Error& error) {
    return error.what();
  }
}

void test_values() {
  const Json json = Json::parse(
      " {\"a\" : [1, -2, 3.5e1, 1E-2, true, false, null, []], \"b\": {\"c\": {}} ,"
      "\"d\": \"\"}\r\n\t",
      "f");
  const auto items = json.at("a").items();
  CHECK_EQ(items.size(), 8u);
  CHECK_EQ(items[0].as_int(), 1);
  CHECK_EQ(items[1].as_int(), -2);
  CHECK_EQ(items[1].as_double(), -2.0);
  CHECK_EQ(items[2].as_double(), 35.0);
  CHECK_EQ(items[3].as_double(), 0.01);
  CHECK(items[4].as_bool() && !items[5].as_bool() && items[6].is_null());
  CHECK(items[7].items().empty());
  CHECK(json.at("b").at("c").members().empty());
  CHECK_EQ(json.at("d").as_string(), "");
  CHECK(json.has("a") && !json.has("z") && json.find("z") == nullptr);
  CHECK(Json::parse("0", "f").is_int() && !Json::parse("0.0", "f").is_int());
  CHECK_EQ(Json::parse("9223372036854775807", "f").as_int(),
           std::numeric_limits<std::int64_t>::max());
  CHECK_EQ(Json::parse("-9223372036854775808", "f").as_int(),
           std::numeric_limits<std::int64_t>::min());
  // Beyond 64 bits a number is no integer, but still a number.
  const Json large = Json::parse("1000000000000000019884624838656", "f");
  CHECK(large.is_number() && !large.is_int());
  CHECK_EQ(large.as_double(), 1e30);
  CHECK_EQ(Json::parse("1e-400", "f").as_double(), 0.0);
}

void test_strings() {
  CHECK_EQ(Json::parse(R"("\"\\\/\b\f\n\r\t")", "f").as_string(), "\"\\/\b\f\n\r\t");
  CHECK_EQ(Json::parse(R"("\u0041\u00e9\u20AC\ud83d\ude00")", "f").as_string(),
           "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK_EQ(Json::parse("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "f").as_string(),
           "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK_EQ(Json::parse(R"("a\u0000b")", "f").as_string(), std::string("a\0b", 3));
  for (const char* bad :
       {"\"", "\"abc", "\"\\", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\udc00\"",
        "\"\\ud800\\u0041\"", "\"\n\"", "\"\xff\"", "\"\xc0\xaf\"", "\"\xe0\x80\x80\"",
        "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\""}) {
    CHECK(error_of(bad) != "");
  }
}

void test_refused() {
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[",
                          "[1,]",
                          "[1 2]",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{\"a\":1,}",
                          "{a:1}",
                          "'a'",
                          "01",
                          "-",
                          "1.",
                          ".5",
                          "1e",
                          "1e+",
                          "+1",
                          "NaN",
                          "Infinity",
                          "-Infinity",
                          "nul",
                          "True",
                          "1 2",
                          "[1]]",
                          "1e999",
                          "\xef\xbb\xbf{}",
                          "{\"a\":1 \"b\":2}",
                          "// c\n1"}) {
    CHECK(error_of(bad) != "");
  }
  CHECK_EQ(error_of("{\"a\": 1,\n  \"a\": 2}"),
           "f, line 2, column 3: the key \"a\" is there twice");
  CHECK_EQ(error_of("[1,\n\n 2 3]"), "f, line 3, column 4: expected ',' or ']', got '3'");
  CHECK_EQ(error_of("[1"), "f, line 1, column 3: expected ',' or ']', got the end of the text");
  CHECK_EQ(error_of("{} x"), "f, line 1, column 4: expected the end of the text, got 'x'");
  const auto nested = [](int n) { return std::string(n, '[') + std::string(n, ']'); };
  CHECK_EQ(error_of(nested(Json::kMaxDepth)), "");
  CHECK(error_of(nested(Json::kMaxDepth + 1)).find("256") != std::string::npos);
  CHECK(error_of(std::string(1000000, '[')) != "");
}

void test_access() {
  const Json json = Json::parse("{\"a\":\n \"text\", \"b\": 7}", "cfg", 5);
  const auto message = [](auto&& access) -> std::string {
    try {
      access();
      return "";
    } catch (const trtspec::Error& error) {
      return error.what();
    }
  };
  CHECK_EQ(message([&] { json.at("a").as_int(); }),
           "cfg, line 6, column 2: expected an integer, got a string");
  CHECK_EQ(message([&] { json.at("c"); }), "cfg, line 5, column 1: the key \"c\" is missing");
  CHECK_EQ(message([&] { json.at("b").as_int(0, 6); }),
           "cfg, line 6, column 15: 7 is not between 0 and 6");
  CHECK_EQ(json.at("b").as_int(7, 7), 7);
  CHECK(message([&] { json.items(); }) != "");
  CHECK(message([&] { json.at("b").members(); }) != "");
  CHECK(message([&] { json.at("b").as_bool(); }) != "");
  // A value outlives the one it came from.
  Json kept = Json::parse("null", "f");
  {
    const Json outer = Json::parse("[[1, 2]]", "f");
    kept = outer.items()[0];
  }
  CHECK_EQ(kept.items()[1].as_int(), 2);
}

void test_writer() {
  JsonWriter writer;
  const std::vector<std::int64_t> ids{1, -2};
  const std::vector<double> rates{0.5, 1.0};
  writer.begin_object();
  writer.key("text").value("a\"\\\n\x01\xc3\xa9");
  writer.key("whole").value(3.0).key("small").value(1e-300).key("none").value(0.0 / 0.0);
  writer.key("ids").value(ids).key("rates").value(rates).key("yes").value(true);
  writer.key("list").begin_array().begin_object().end_object().null().value(7).end_array();
  writer.key("empty").begin_array().end_array().end_object();
  const Json json = Json::parse(writer.text(), "written");
  CHECK_EQ(json.at("text").as_string(), "a\"\\\n\x01\xc3\xa9");
  CHECK(!json.at("whole").is_int());
  CHECK_EQ(json.at("whole").as_double(), 3.0);
  CHECK_EQ(json.at("small").as_double(), 1e-300);
  CHECK(json.at("none").is_null());
  CHECK_EQ(json.at("ids").items()[1].as_int(), -2);
  CHECK_EQ(json.at("rates").items()[0].as_double(), 0.5);
  CHECK(json.at("yes").as_bool());
  CHECK_EQ(json.at("list").items().size(), 3u);
  CHECK(json.at("empty").items().empty());
  JsonWriter line(0);
  line.begin_object().key("a").value(1).key("b").begin_array().value(1.5).value("x").end_array();
  CHECK_EQ(line.end_object().text(), "{\"a\": 1, \"b\": [1.5, \"x\"]}");
}

// Damaged texts are refused or read, never anything else.
void test_damaged() {
  const std::string good =
      R"({"format": 2, "target": {"sizes": [1, 2e3, -7], "name": "é\u00e9"}, "x": [true, null]})";
  CHECK_EQ(error_of(good), "");
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (int change = 0; change < 2; ++change) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + random() % 4); break;
        default: text.insert(at, 1, "{}[]\",:\\0e.-"[random() % 12]);
      }
    }
    const std::string error = error_of(text);
    CHECK(error.empty() || error.rfind("f, line ", 0) == 0);
    CHECK(error.find('\n') == std::string::npos);
  }
}

}  // namespace

int main() {
  test_values();
  test_strings();
  test_refused();
  test_access();
  test_writer();
  test_damaged();
  return check_result();
}
