// Values of a trace: what a run has for a field of it, and whether the trace has the same.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <trtspec/json.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace trace {

using trtspec::Json;

// A difference between the trace and this run.
class Difference : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What this run has for a field of the trace: a number, a text, nothing or a list.
struct Value {
  enum class Kind { null, boolean, integer, real, text, list } kind = Kind::null;
  std::int64_t integer = 0;
  double real = 0.0;
  std::string text;
  std::vector<Value> list;

  Value() = default;
  Value(bool value) : kind(Kind::boolean), integer(value) {}
  Value(std::int64_t value) : kind(Kind::integer), integer(value) {}
  Value(double value) : kind(Kind::real), real(value) {}
  Value(const char* value) : kind(Kind::text), text(value) {}
  Value(std::vector<Value> values) : kind(Kind::list), list(std::move(values)) {}
  template <class T>
  static Value of(const T& numbers) {
    std::vector<Value> values;
    for (const auto number : numbers) {
      if constexpr (std::is_floating_point_v<std::remove_cvref_t<decltype(number)>>) {
        values.emplace_back(number);
      } else {
        values.emplace_back(std::int64_t{number});
      }
    }
    return Value(std::move(values));
  }

  bool equals(const Json& other) const {
    switch (kind) {
      case Kind::null: return other.is_null();
      case Kind::boolean: return other.is_bool() && other.as_bool() == (integer != 0);
      case Kind::integer: return other.is_int() && other.as_int() == integer;
      case Kind::real: return other.is_number() && other.as_double() == real;
      case Kind::text: return other.is_string() && other.as_string() == text;
      case Kind::list: break;
    }
    if (!other.is_array() || other.items().size() != list.size()) return false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!list[i].equals(other.items()[i])) return false;
    }
    return true;
  }

  void write(trtspec::JsonWriter& out) const {
    switch (kind) {
      case Kind::null: out.null(); return;
      case Kind::boolean: out.value(integer != 0); return;
      case Kind::integer: out.value(integer); return;
      case Kind::real: out.value(real); return;
      case Kind::text: out.value(text); return;
      case Kind::list: break;
    }
    out.begin_array();
    for (const Value& value : list) value.write(out);
    out.end_array();
  }
};

inline void write(const Json& value, trtspec::JsonWriter& out) {
  if (value.is_array()) {
    out.begin_array();
    for (const Json& item : value.items()) write(item, out);
    out.end_array();
  } else if (value.is_bool()) {
    out.value(value.as_bool());
  } else if (value.is_int()) {
    out.value(value.as_int());
  } else if (value.is_number()) {
    out.value(value.as_double());
  } else if (value.is_string()) {
    out.value(value.as_string());
  } else {
    out.null();
  }
}

inline void expect(const Json& line, const char* field, const Value& value) {
  const Json* wanted = line.find(field);
  if (wanted && value.equals(*wanted)) return;
  trtspec::JsonWriter theirs(0);
  trtspec::JsonWriter ours(0);
  if (wanted) write(*wanted, theirs);
  value.write(ours);
  throw Difference(std::string(field) + ": the trace has " +
                   (wanted ? theirs.text() : "no such field") + ", this run " + ours.text());
}

using Fields = std::map<std::string, Value>;

inline std::vector<std::int64_t> numbers(const Json& list) {
  std::vector<std::int64_t> values;
  for (const Json& item : list.items()) values.push_back(item.as_int());
  return values;
}

}  // namespace trace
