// Json: a value of a JSON text (RFC 8259), read strictly. JsonWriter: the other way.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trtspec/error.hpp"

namespace trtspec {

// An immutable value that knows where it stood. Copies share their contents.
//
// Text must be UTF-8 without a byte order mark, numbers finite, keys of an object different,
// nesting at most kMaxDepth; nothing may follow the value. Everything that does not hold, and every
// access that does not fit a value, throws Error: "<where>, line 3, column 7: <what>" (column in
// bytes).
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json, std::less<>>;
  static constexpr int kMaxDepth = 256;

  // Reads a whole text. where: the name of a file, for messages; first_line: the number of the
  // text's first line in it.
  static Json parse(std::string_view text, std::string_view where, std::int64_t first_line = 1);

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  // A number written without fraction and exponent that fits into 64 bits.
  bool is_int() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<Shared<std::string>>(value_); }
  bool is_array() const { return std::holds_alternative<Shared<Array>>(value_); }
  bool is_object() const { return std::holds_alternative<Shared<Object>>(value_); }

  bool as_bool() const;
  std::int64_t as_int() const;
  // Also refuses what is not in [low, high].
  std::int64_t as_int(std::int64_t low, std::int64_t high) const;
  double as_double() const;  // of an integer too
  const std::string& as_string() const;
  std::span<const Json> items() const;  // of an array
  const Object& members() const;        // of an object, in the order of their keys

  // Members of an object: at refuses a missing one, find gives a null pointer for it.
  const Json& at(std::string_view key) const;
  const Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // "a string", "an integer", ...; for messages.
  const char* type_name() const;
  std::int64_t line() const { return line_; }
  // Throws Error about this value, at its place.
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  template <class T>
  using Shared = std::shared_ptr<const T>;
  using Value = std::variant<std::nullptr_t, bool, std::int64_t, double, Shared<std::string>,
                             Shared<Array>, Shared<Object>>;
  friend class JsonReader;

  Json(Value value, Shared<std::string> where, std::uint32_t line, std::uint32_t column)
      : value_(std::move(value)), where_(std::move(where)), line_(line), column_(column) {}
  template <class T>
  const T& get(const char* wanted) const;

  Value value_;
  Shared<std::string> where_;
  std::uint32_t line_;
  std::uint32_t column_;
};

// Builds a JSON text. The caller opens and closes what it opens; commas, escapes and indentation
// are done here. Numbers that are not finite become null.
class JsonWriter {
 public:
  // indent: spaces a level; 0 writes one line.
  explicit JsonWriter(int indent = 2) : indent_(indent) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  // Names the member that comes next.
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(double number);
  JsonWriter& value(std::int64_t number);
  JsonWriter& value(int number) { return value(std::int64_t{number}); }
  JsonWriter& value(bool truth);
  JsonWriter& null();
  // An array of numbers on one line.
  JsonWriter& value(std::span<const std::int64_t> numbers);
  JsonWriter& value(std::span<const double> numbers);

  const std::string& text() const { return text_; }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void before_value();
  void new_line();
  void append_number(double number);

  int indent_;
  int depth_ = 0;
  bool first_ = true;
  bool after_key_ = false;
  std::string text_;
};

// `text` as a JSON string, with its quotes.
std::string quoted_json(std::string_view text);

}  // namespace trtspec
