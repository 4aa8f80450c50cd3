#include "samples.hpp"

#include <algorithm>
#include <limits>
#include <trtspec/files.hpp>
#include <trtspec/json.hpp>

namespace trtspec::bench {

namespace {

Sample read_sample(const Json& json, const SampleLimits& limits) {
  Sample sample;
  const Json& ids = json.at("input_ids");
  for (const Json& id : ids.items()) {
    const std::int64_t token = id.as_int();
    if (token < 0 || token >= limits.vocab_size) {
      id.refuse("token " + std::to_string(token) + " is not in the engine's vocabulary of " +
                std::to_string(limits.vocab_size));
    }
    sample.input_ids.push_back(token);
  }
  if (sample.input_ids.empty()) ids.refuse("a sample needs at least one input token");
  const Json* length = json.find("output_len");
  if (!length) length = json.find("output_tokens");
  if (!length) json.refuse("the key \"output_len\" is missing");
  sample.output_len = length->as_int(1, std::numeric_limits<std::int32_t>::max());
  const auto inputs = static_cast<std::int64_t>(sample.input_ids.size());
  if (inputs + sample.output_len > limits.max_seq_len) {
    json.refuse(std::to_string(inputs) + " input tokens + " + std::to_string(sample.output_len) +
                " output tokens exceed max_seq_len=" + std::to_string(limits.max_seq_len) +
                "; shorten the sample or rebuild the engine for it");
  }
  return sample;
}

// The next line of `text` from `begin` on, which moves behind it.
std::string_view take_line(std::string_view text, std::size_t& begin) {
  const std::size_t end = std::min(text.find('\n', begin), text.size());
  const std::string_view line = text.substr(begin, end - begin);
  begin = end + 1;
  return line;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Whether the first line that is not blank is a sample of its own.
bool has_lines(std::string_view text, const std::string& path) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::string_view line = take_line(text, begin);
    if (is_blank(line)) continue;
    try {
      const Json json = Json::parse(line, path);
      return json.is_object() && json.has("input_ids");
    } catch (const Error&) {
      return false;
    }
  }
  return false;
}

}  // namespace

std::vector<Sample> read_samples(const std::string& path,
                                 std::optional<std::int64_t> max_num_samples,
                                 const SampleLimits& limits) {
  const std::string text = read_file(path);
  const auto wanted =
      static_cast<std::size_t>(max_num_samples.value_or(std::numeric_limits<std::int64_t>::max()));
  std::vector<Sample> samples;
  if (path.ends_with(".jsonl") || has_lines(text, path)) {
    std::int64_t number = 1;
    for (std::size_t begin = 0; begin < text.size() && samples.size() < wanted; ++number) {
      const std::string_view line = take_line(text, begin);
      if (!is_blank(line)) samples.push_back(read_sample(Json::parse(line, path, number), limits));
    }
  } else {
    const Json json = Json::parse(text, path);
    for (const Json& sample : json.at("samples").items()) {
      if (samples.size() == wanted) break;
      samples.push_back(read_sample(sample, limits));
    }
  }
  if (samples.empty()) throw Error(path + " holds no sample");
  return samples;
}

}  // namespace trtspec::bench
