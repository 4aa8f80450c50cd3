#include "fields.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace trtspec::tensorrt {

namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw std::invalid_argument("field " + name + " " + why);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

// The bits of the float, so that different values never have one text.
std::string exact(float number) {
  char text[32];
  std::snprintf(text, sizeof text, "%a", double(number));
  return text;
}

template <class T>
T load(const PluginField& field) {
  T value;
  std::memcpy(&value, field.data, sizeof value);
  return value;
}

}  // namespace

FieldSpec integer_field(const char* name, std::int32_t low, std::int32_t high) {
  return {name, PluginFieldType::kINT32, low, high, {}};
}

FieldSpec number_field(const char* name, std::int32_t above) {
  return {name, PluginFieldType::kFLOAT32, above, 0, {}};
}

FieldSpec number_from_field(const char* name, std::int32_t least) {
  return {name, PluginFieldType::kFLOAT32, least, 0, {}, true};
}

FieldSpec word_field(const char* name, std::vector<std::string> words) {
  return {name, PluginFieldType::kCHAR, 0, 0, std::move(words)};
}

std::vector<PluginField> announced(const std::vector<FieldSpec>& specs) {
  std::vector<PluginField> fields;
  for (const FieldSpec& spec : specs) {
    fields.emplace_back(spec.name, nullptr, spec.type, spec.type == PluginFieldType::kCHAR ? 0 : 1);
  }
  return fields;
}

Fields::Fields(std::vector<FieldSpec> specs, const nvinfer1::PluginFieldCollection& given)
    : specs_(std::move(specs)), values_(specs_.size()) {
  std::vector<bool> seen(specs_.size());
  for (std::int32_t i = 0; i < given.nbFields; ++i) {
    const PluginField& field = given.fields[i];
    const std::string name = field.name != nullptr ? field.name : "(no name)";
    const auto spec = std::find_if(specs_.begin(), specs_.end(),
                                   [&](const FieldSpec& each) { return name == each.name; });
    if (spec == specs_.end()) {
      std::vector<std::string> known;
      for (const FieldSpec& each : specs_) known.push_back(each.name);
      refuse(name, "is unknown; known: " + listed(known));
    }
    const auto at = std::size_t(spec - specs_.begin());
    if (seen[at]) refuse(name, "is given twice");
    seen[at] = true;
    values_[at] = read(*spec, field);
  }
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (!seen[i]) refuse(specs_[i].name, "is missing");
  }
}

Fields::Value Fields::read(const FieldSpec& spec, const PluginField& field) {
  const bool is_word = spec.type == PluginFieldType::kCHAR;
  if (field.data == nullptr) refuse(spec.name, "has no data");
  if (!is_word && field.length != 1) {
    refuse(spec.name, "must be one value, got " + std::to_string(field.length));
  }
  Value value;
  if (is_word) {
    if (field.type != PluginFieldType::kCHAR) refuse(spec.name, "must be characters");
    value.word.assign(static_cast<const char*>(field.data), std::size_t(std::max(field.length, 0)));
    // Some callers count the end of a C string.
    if (!value.word.empty() && value.word.back() == '\0') value.word.pop_back();
    if (std::find(spec.words.begin(), spec.words.end(), value.word) == spec.words.end()) {
      refuse(spec.name, "must be one of " + listed(spec.words) + ", got " + value.word);
    }
  } else if (spec.type == PluginFieldType::kINT32) {
    std::int64_t integer = 0;
    if (field.type == PluginFieldType::kINT32) {
      integer = load<std::int32_t>(field);
    } else if (field.type == PluginFieldType::kINT64) {
      integer = load<std::int64_t>(field);
    } else {
      refuse(spec.name, "must be an int32 or int64");
    }
    if (integer < spec.low || integer > spec.high) {
      refuse(spec.name, "must be from " + std::to_string(spec.low) + " to " +
                            std::to_string(spec.high) + ", got " + std::to_string(integer));
    }
    value.integer = std::int32_t(integer);
  } else {
    if (field.type == PluginFieldType::kFLOAT32) {
      value.number = load<float>(field);
    } else if (field.type == PluginFieldType::kFLOAT64) {
      value.number = float(load<double>(field));
    } else {
      refuse(spec.name, "must be a float32 or float64");
    }
    const bool is_low =
        spec.from_low ? value.number < float(spec.low) : value.number <= float(spec.low);
    if (!std::isfinite(value.number) || is_low) {
      refuse(spec.name, std::string("must be a finite number ") +
                            (spec.from_low ? "from " : "above ") + std::to_string(spec.low) +
                            (spec.from_low ? " on, got " : ", got ") +
                            std::to_string(value.number));
    }
  }
  return value;
}

std::vector<PluginField> Fields::serialized() const {
  std::vector<PluginField> fields;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const Value& value = values_[i];
    if (specs_[i].type == PluginFieldType::kCHAR) {
      fields.emplace_back(specs_[i].name, value.word.data(), PluginFieldType::kCHAR,
                          std::int32_t(value.word.size()));
    } else if (specs_[i].type == PluginFieldType::kINT32) {
      fields.emplace_back(specs_[i].name, &value.integer, PluginFieldType::kINT32, 1);
    } else {
      fields.emplace_back(specs_[i].name, &value.number, PluginFieldType::kFLOAT32, 1);
    }
  }
  return fields;
}

std::string Fields::text() const {
  std::string text;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const Value& value = values_[i];
    if (i > 0) text += ';';
    text += specs_[i].name + std::string("=");
    text += specs_[i].type == PluginFieldType::kCHAR    ? value.word
            : specs_[i].type == PluginFieldType::kINT32 ? std::to_string(value.integer)
                                                        : exact(value.number);
  }
  return text;
}

const Fields::Value& Fields::value(const char* name) const {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (std::strcmp(specs_[i].name, name) == 0) return values_[i];
  }
  throw std::logic_error(std::string("no field is called ") + name);
}

}  // namespace trtspec::tensorrt
