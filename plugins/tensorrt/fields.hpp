// The fields (attributes) of a plugin: declared once, read strictly, written back as they were.
#pragma once
#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trtspec::tensorrt {

// An integer of [low, high], a finite number above `low` (or, with from_low, from it on), or one of
// some words. All are required.
struct FieldSpec {
  const char* name;
  nvinfer1::PluginFieldType type;
  std::int32_t low = 0;
  std::int32_t high = 0;
  std::vector<std::string> words;
  bool from_low = false;
};

FieldSpec integer_field(const char* name, std::int32_t low, std::int32_t high);
FieldSpec number_field(const char* name, std::int32_t above);
FieldSpec number_from_field(const char* name, std::int32_t least);
FieldSpec word_field(const char* name, std::vector<std::string> words);

// As creators announce them: names and types without data. Views into `specs`.
std::vector<nvinfer1::PluginField> announced(const std::vector<FieldSpec>& specs);

class Fields {
 public:
  // Reads `given`: integers as int32 or int64, numbers as float32 or float64, words as characters.
  // std::invalid_argument, naming the field, if one is missing, unknown, given twice, or of a type
  // or value that its spec does not allow.
  Fields(std::vector<FieldSpec> specs, const nvinfer1::PluginFieldCollection& given);

  // The value of a declared field of that kind.
  std::int32_t integer(const char* name) const { return value(name).integer; }
  float number(const char* name) const { return value(name).number; }
  const std::string& word(const char* name) const { return value(name).word; }

  // What the constructor reads the same values from. Views into this object.
  std::vector<nvinfer1::PluginField> serialized() const;

  // name=value;name=value, equal only for equal values.
  std::string text() const;

 private:
  struct Value {
    std::int32_t integer = 0;
    float number = 0;
    std::string word;
  };

  const Value& value(const char* name) const;
  static Value read(const FieldSpec& spec, const nvinfer1::PluginField& field);

  std::vector<FieldSpec> specs_;
  std::vector<Value> values_;  // of specs_, in order
};

}  // namespace trtspec::tensorrt
