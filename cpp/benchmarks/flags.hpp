// FlagReader: the flags of a command line, by name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <trtspec/error.hpp>
#include <utility>
#include <vector>

namespace trtspec::bench {

// A command line that does not say what to do; the message is one line.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Reads "--name value" and "--name=value"; a switch stands alone or as "--name=true|false". A "-"
// inside a name is the same as "_". Unknown flags, flags given twice, missing and malformed values
// throw UsageError that names flag and value.
class FlagReader {
 public:
  using Texts = std::map<std::string, std::string, std::less<>>;

  // names: every flag that takes a value; switches: those that do not need one; aliases: other
  // spellings of them; elsewhere: flags that Python has alone, with what to do instead.
  FlagReader(std::vector<std::string> names, std::vector<std::string> switches, Texts aliases,
             Texts elsewhere);

  void parse(int argc, const char* const* argv);

  bool has(std::string_view name) const { return values_.contains(name); }
  std::optional<std::string> text(std::string_view name) const;
  // Within [low, high].
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low,
                                      std::int64_t high) const;
  // Finite.
  std::optional<double> number(std::string_view name) const;
  // Several integers, with commas between them.
  std::optional<std::vector<std::int64_t>> integers(std::string_view name) const;
  // Several such lists, with semicolons between them; none without the flag.
  std::vector<std::vector<std::int64_t>> lists(std::string_view name) const;
  // Several pairs "integer:number", with commas between them, no integer twice; none without it.
  std::vector<std::pair<std::int64_t, double>> pairs(std::string_view name) const;
  std::optional<bool> truth(std::string_view name) const;

 private:
  bool is_switch(std::string_view name) const;
  [[noreturn]] void refuse_unknown(const std::string& name) const;
  [[noreturn]] void refuse(std::string_view name, std::string_view what) const;

  std::vector<std::string> names_;
  std::vector<std::string> switches_;
  Texts aliases_;
  Texts elsewhere_;
  Texts values_;
};

}  // namespace trtspec::bench
