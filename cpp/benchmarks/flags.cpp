#include "flags.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace trtspec::bench {

namespace {

// Levenshtein's distance of two names.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

template <class T>
std::optional<T> read_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The parts of a text between separators.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::optional<std::vector<std::int64_t>> read_integers(std::string_view text) {
  std::vector<std::int64_t> values;
  for (const std::string_view part : split(text, ',')) {
    const auto value = read_number<std::int64_t>(part);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

}  // namespace

FlagReader::FlagReader(std::vector<std::string> names, std::vector<std::string> switches,
                       Texts aliases, Texts elsewhere)
    : names_(std::move(names)),
      switches_(std::move(switches)),
      aliases_(std::move(aliases)),
      elsewhere_(std::move(elsewhere)) {}

void FlagReader::parse(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view given = argv[i];
    if (!given.starts_with("--") || given.size() == 2) {
      throw UsageError("unexpected argument '" + std::string(given) + "'; flags begin with --");
    }
    const std::size_t equals = given.find('=');
    std::string name(given.substr(2, equals == std::string_view::npos ? equals : equals - 2));
    std::replace(name.begin(), name.end(), '-', '_');
    const std::string written = name;
    if (const auto alias = aliases_.find(name); alias != aliases_.end()) name = alias->second;
    if (const auto found = elsewhere_.find(name); found != elsewhere_.end()) {
      throw UsageError("--" + written + " is Python's only: " + found->second);
    }
    std::string value = "true";
    if (!is_switch(name) && std::find(names_.begin(), names_.end(), name) == names_.end()) {
      refuse_unknown(written);
    }
    if (equals != std::string_view::npos) {
      value = given.substr(equals + 1);
    } else if (!is_switch(name)) {
      if (++i == argc) throw UsageError("--" + written + " needs a value");
      value = argv[i];
    }
    if (!values_.emplace(name, value).second) throw UsageError("--" + written + " is given twice");
  }
}

bool FlagReader::is_switch(std::string_view name) const {
  return std::find(switches_.begin(), switches_.end(), name) != switches_.end();
}

void FlagReader::refuse_unknown(const std::string& name) const {
  std::string nearest;
  std::size_t best = name.size() / 3 + 1;
  for (const auto* list : {&names_, &switches_}) {
    for (const std::string& known : *list) {
      if (const std::size_t far = distance(name, known); far < best) {
        best = far;
        nearest = known;
      }
    }
  }
  throw UsageError("unknown flag --" + name +
                   (nearest.empty() ? "; see --help" : "; did you mean --" + nearest + "?"));
}

void FlagReader::refuse(std::string_view name, std::string_view what) const {
  throw UsageError("--" + std::string(name) + " " + values_.find(name)->second + " " +
                   std::string(what));
}

std::optional<std::string> FlagReader::text(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return std::nullopt;
  if (found->second.empty()) throw UsageError("--" + std::string(name) + " is empty");
  return found->second;
}

std::optional<std::int64_t> FlagReader::integer(std::string_view name, std::int64_t low,
                                                std::int64_t high) const {
  const auto given = text(name);
  if (!given) return std::nullopt;
  const auto value = read_number<std::int64_t>(*given);
  if (!value) refuse(name, "is not an integer of 64 bits");
  if (*value < low) refuse(name, "must be at least " + std::to_string(low));
  if (*value > high) refuse(name, "must be at most " + std::to_string(high));
  return value;
}

std::optional<double> FlagReader::number(std::string_view name) const {
  const auto given = text(name);
  if (!given) return std::nullopt;
  const auto value = read_number<double>(*given);
  if (!value || !std::isfinite(*value)) refuse(name, "is not a number");
  return value;
}

std::optional<std::vector<std::int64_t>> FlagReader::integers(std::string_view name) const {
  const auto given = text(name);
  if (!given) return std::nullopt;
  const auto values = read_integers(*given);
  if (!values) refuse(name, "is not a list of integers with commas between them");
  return values;
}

std::vector<std::vector<std::int64_t>> FlagReader::lists(std::string_view name) const {
  std::vector<std::vector<std::int64_t>> found;
  const auto given = text(name);
  if (!given) return found;
  for (const std::string_view part : split(*given, ';')) {
    const auto values = read_integers(part);
    if (!values) refuse(name, "is not lists of integers, as in 5;7,8");
    found.push_back(*values);
  }
  return found;
}

std::vector<std::pair<std::int64_t, double>> FlagReader::pairs(std::string_view name) const {
  std::vector<std::pair<std::int64_t, double>> found;
  const auto given = text(name);
  if (!given) return found;
  for (const std::string_view part : split(*given, ',')) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    const auto key = read_number<std::int64_t>(part.substr(0, colon));
    const auto value = read_number<double>(part.substr(std::min(colon + 1, part.size())));
    if (!key || !value || !std::isfinite(*value)) {
      refuse(name, "is not pairs of an integer and a number, as in 5:-1.5,7:2");
    }
    for (const auto& pair : found) {
      if (pair.first == *key) refuse(name, "names " + std::to_string(*key) + " twice");
    }
    found.emplace_back(*key, *value);
  }
  return found;
}

std::optional<bool> FlagReader::truth(std::string_view name) const {
  const auto given = text(name);
  if (!given) return std::nullopt;
  if (*given != "true" && *given != "false") refuse(name, "must be true or false");
  return *given == "true";
}

}  // namespace trtspec::bench
