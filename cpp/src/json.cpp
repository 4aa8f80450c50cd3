#include "trtspec/json.hpp"

#include <charconv>
#include <cmath>
#include <cstring>

namespace trtspec {

namespace {

[[noreturn]] void fail(std::string_view where, std::uint64_t line, std::uint64_t column,
                       std::string_view what) {
  throw Error(std::string(where) + ", line " + std::to_string(line) + ", column " +
              std::to_string(column) + ": " + std::string(what));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Bytes of the UTF-8 sequence at the start of `text`; 0 if it is not a valid one (Unicode 15,
// table 3-7).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto add = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

}  // namespace

// A recursive-descent parser over one text.
class JsonReader {
 public:
  JsonReader(std::string_view text, std::string_view where, std::int64_t first_line)
      : text_(text),
        where_(std::make_shared<const std::string>(where)),
        line_(static_cast<std::uint64_t>(first_line)) {}

  Json read() {
    skip_space();
    Json value = read_value(0);
    skip_space();
    if (at_ != text_.size()) fail_here("expected the end of the text, got " + next_name());
    return value;
  }

 private:
  [[noreturn]] void fail_here(std::string_view what) const {
    fail(*where_, line_, at_ - line_start_ + 1, what);
  }

  // The next character, for messages.
  std::string next_name() const {
    if (at_ == text_.size()) return "the end of the text";
    const unsigned char c = static_cast<unsigned char>(text_[at_]);
    if (c > 0x20 && c < 0x7F) return std::string("'") + text_[at_] + "'";
    constexpr char kHex[] = "0123456789abcdef";
    return std::string("byte 0x") + kHex[c >> 4] + kHex[c & 15];
  }

  bool more() const { return at_ < text_.size(); }
  bool next_is(char c) const { return more() && text_[at_] == c; }

  void skip_space() {
    for (; more(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        line_start_ = at_ + 1;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return;
      }
    }
  }

  Json read_value(int depth) {
    const auto line = static_cast<std::uint32_t>(line_);
    const auto column = static_cast<std::uint32_t>(at_ - line_start_ + 1);
    return Json(read_contents(depth), where_, line, column);
  }

  Json::Value read_contents(int depth) {
    if (!more()) fail_here("expected a value, got the end of the text");
    const char c = text_[at_];
    if (c == '{' || c == '[') {
      if (depth == Json::kMaxDepth) {
        fail_here("nested deeper than " + std::to_string(Json::kMaxDepth) + " levels");
      }
      if (c == '{') return read_object(depth + 1);
      return read_array(depth + 1);
    }
    if (c == '"') return std::make_shared<const std::string>(read_string());
    if (c == '-' || is_digit(c)) return read_number();
    if (take_word("true")) return true;
    if (take_word("false")) return false;
    if (take_word("null")) return nullptr;
    fail_here("expected a value, got " + next_name());
  }

  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json::Value read_array(int depth) {
    Json::Array items;
    ++at_;
    skip_space();
    if (next_is(']')) {
      ++at_;
      return std::make_shared<const Json::Array>();
    }
    for (;;) {
      items.push_back(read_value(depth));
      if (end_of_list(']')) break;
    }
    items.shrink_to_fit();
    return std::make_shared<const Json::Array>(std::move(items));
  }

  Json::Value read_object(int depth) {
    Json::Object members;
    ++at_;
    skip_space();
    if (next_is('}')) {
      ++at_;
      return std::make_shared<const Json::Object>();
    }
    for (;;) {
      if (!next_is('"')) fail_here("expected a key in quotes, got " + next_name());
      const std::size_t key_at = at_;
      std::string key = read_string();
      if (members.contains(key)) {
        at_ = key_at;
        fail_here("the key " + quoted_json(key) + " is there twice");
      }
      skip_space();
      if (!next_is(':')) fail_here("expected ':' after a key, got " + next_name());
      ++at_;
      skip_space();
      members.emplace(std::move(key), read_value(depth));
      if (end_of_list('}')) break;
    }
    return std::make_shared<const Json::Object>(std::move(members));
  }

  // Takes the comma or the bracket behind an item; true for the bracket.
  bool end_of_list(char bracket) {
    skip_space();
    const bool end = next_is(bracket);
    if (!end && !next_is(',')) {
      fail_here(std::string("expected ',' or '") + bracket + "', got " + next_name());
    }
    ++at_;
    if (!end) skip_space();
    return end;
  }

  std::string read_string() {
    std::string out;
    ++at_;
    for (;;) {
      if (!more()) fail_here("the text ends inside a string");
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') {
        ++at_;
        return out;
      }
      if (c == '\\') {
        read_escape(out);
      } else if (c < 0x20) {
        fail_here("a string holds the control character " + next_name() + "; escape it");
      } else {
        const std::size_t length = utf8_length(text_.substr(at_));
        if (length == 0) fail_here("invalid UTF-8 at " + next_name());
        out.append(text_, at_, length);
        at_ += length;
      }
    }
  }

  void read_escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    ++at_;
    if (next_is('u')) {
      ++at_;
      std::uint32_t code = read_hex();
      if (code >= 0xDC00 && code < 0xE000) fail_here("half a surrogate pair in an escape");
      if (code >= 0xD800 && code < 0xDC00) {
        if (!take_word("\\u")) fail_here("half a surrogate pair in an escape");
        const std::uint32_t low = read_hex();
        if (low < 0xDC00 || low >= 0xE000) fail_here("half a surrogate pair in an escape");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      append_utf8(out, code);
      return;
    }
    const std::size_t known = more() ? kNames.find(text_[at_]) : std::string_view::npos;
    if (known == std::string_view::npos) fail_here("unknown escape: '\\' before " + next_name());
    out.push_back(kValues[known]);
    ++at_;
  }

  std::uint32_t read_hex() {
    std::uint32_t code = 0;
    const char* begin = text_.data() + at_;
    const std::size_t length = std::min<std::size_t>(4, text_.size() - at_);
    const auto [end, error] = std::from_chars(begin, begin + length, code, 16);
    if (error != std::errc() || end != begin + 4) fail_here("\\u needs four hexadecimal digits");
    at_ += 4;
    return code;
  }

  void take_digits() {
    if (!more() || !is_digit(text_[at_])) fail_here("expected a digit, got " + next_name());
    while (more() && is_digit(text_[at_])) ++at_;
  }

  Json::Value read_number() {
    const std::size_t begin = at_;
    if (next_is('-')) ++at_;
    const std::size_t digits = at_;
    take_digits();
    if (text_[digits] == '0' && at_ > digits + 1) {
      at_ = digits;
      fail_here("a number begins with a needless 0");
    }
    bool whole = true;
    if (next_is('.')) {
      whole = false;
      ++at_;
      take_digits();
    }
    if (next_is('e') || next_is('E')) {
      whole = false;
      ++at_;
      if (next_is('+') || next_is('-')) ++at_;
      take_digits();
    }
    const char* first = text_.data() + begin;
    const char* last = text_.data() + at_;
    if (whole) {
      std::int64_t integer = 0;
      if (std::from_chars(first, last, integer).ec == std::errc()) return integer;
    }
    double number = 0;
    if (std::from_chars(first, last, number).ec == std::errc()) return number;
    // Too large, or too small to be told from 0.
    number = std::strtod(std::string(first, last).c_str(), nullptr);
    if (!std::isfinite(number)) {
      at_ = begin;
      fail_here("a number does not fit into 64 bits");
    }
    return number;
  }

  std::string_view text_;
  std::shared_ptr<const std::string> where_;
  std::uint64_t line_;
  std::size_t line_start_ = 0;
  std::size_t at_ = 0;
};

Json Json::parse(std::string_view text, std::string_view where, std::int64_t first_line) {
  return JsonReader(text, where, first_line).read();
}

void Json::refuse(std::string_view what) const { fail(*where_, line_, column_, what); }

const char* Json::type_name() const {
  constexpr const char* kNames[] = {"null",     "true or false", "an integer", "a number",
                                    "a string", "an array",      "an object"};
  return kNames[value_.index()];
}

template <class T>
const T& Json::get(const char* wanted) const {
  const T* value = std::get_if<T>(&value_);
  if (!value) refuse(std::string("expected ") + wanted + ", got " + type_name());
  return *value;
}

bool Json::as_bool() const { return get<bool>("true or false"); }

std::int64_t Json::as_int() const { return get<std::int64_t>("an integer"); }

std::int64_t Json::as_int(std::int64_t low, std::int64_t high) const {
  const std::int64_t value = as_int();
  if (value < low || value > high) {
    refuse(std::to_string(value) + " is not between " + std::to_string(low) + " and " +
           std::to_string(high));
  }
  return value;
}

double Json::as_double() const {
  if (is_int()) return static_cast<double>(std::get<std::int64_t>(value_));
  return get<double>("a number");
}

const std::string& Json::as_string() const { return *get<Shared<std::string>>("a string"); }

std::span<const Json> Json::items() const { return *get<Shared<Array>>("an array"); }

const Json::Object& Json::members() const { return *get<Shared<Object>>("an object"); }

const Json& Json::at(std::string_view key) const {
  const Json* value = find(key);
  if (!value) refuse("the key " + quoted_json(key) + " is missing");
  return *value;
}

const Json* Json::find(std::string_view key) const {
  const Object& all = members();
  const auto found = all.find(key);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace trtspec
