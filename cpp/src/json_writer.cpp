#include <charconv>
#include <cmath>

#include "trtspec/json.hpp"

namespace trtspec {

std::string quoted_json(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  constexpr std::string_view kNames = "bfnrt";
  constexpr std::string_view kValues = "\b\f\n\r\t";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (const auto known = kValues.find(c); known != std::string_view::npos) {
      out += {'\\', kNames[known]};
    } else if (byte < 0x20) {
      out += "\\u00";
      out += {kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

void JsonWriter::new_line() {
  if (indent_ == 0) return;
  text_.push_back('\n');
  text_.append(static_cast<std::size_t>(indent_ * depth_), ' ');
}

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (depth_ == 0) return;
  if (!first_) text_ += indent_ == 0 ? ", " : ",";
  first_ = false;
  new_line();
}

JsonWriter& JsonWriter::open(char bracket) {
  before_value();
  text_.push_back(bracket);
  ++depth_;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  --depth_;
  if (!first_) new_line();
  text_.push_back(bracket);
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  before_value();
  text_ += quoted_json(name) + ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  before_value();
  text_ += quoted_json(text);
  return *this;
}

JsonWriter& JsonWriter::value(double number) {
  before_value();
  append_number(number);
  return *this;
}

JsonWriter& JsonWriter::value(std::int64_t number) {
  before_value();
  text_ += std::to_string(number);
  return *this;
}

JsonWriter& JsonWriter::value(bool truth) {
  before_value();
  text_ += truth ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  before_value();
  text_ += "null";
  return *this;
}

JsonWriter& JsonWriter::value(std::span<const std::int64_t> numbers) {
  before_value();
  text_.push_back('[');
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text_ += ", ";
    text_ += std::to_string(numbers[i]);
  }
  text_.push_back(']');
  return *this;
}

JsonWriter& JsonWriter::value(std::span<const double> numbers) {
  before_value();
  text_.push_back('[');
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text_ += ", ";
    append_number(numbers[i]);
  }
  text_.push_back(']');
  return *this;
}

void JsonWriter::append_number(double number) {
  if (!std::isfinite(number)) {
    text_ += "null";
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  text_.append(digits, end);
  // A number that looks whole would come back as an integer.
  if (text_.find_first_of(".e", text_.size() - static_cast<std::size_t>(end - digits)) ==
      std::string::npos) {
    text_ += ".0";
  }
}

}  // namespace trtspec
