#include "trtspec/host.hpp"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

namespace trtspec {

namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// The folders of a hierarchy of control groups, the process's own first, then those around it.
struct Hierarchy {
  bool is_v2;
  std::vector<std::string> folders;
};

bool has_word(const std::string& list, std::string_view word) {
  std::istringstream words(list);
  for (std::string found; std::getline(words, found, ',');) {
    if (found == word) return true;
  }
  return false;
}

// The part of `path` below `base`; "" if it does not lie below, as a path that begins outside the
// namespace of the process: what can be seen of its group then is where the hierarchy is mounted.
std::string below(const std::string& path, const std::string& base) {
  if (path.find("/..") != std::string::npos) return "";
  if (base == "/") return path == "/" ? "" : path;
  const bool is_below =
      path.starts_with(base) && (path.size() == base.size() || path[base.size()] == '/');
  return is_below ? path.substr(base.size()) : "";
}

// Of the group that the process has in the hierarchy of a controller; of version 2 for "".
std::optional<std::string> group_path(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool fits = controller.empty() ? controllers.empty() : has_word(controllers, controller);
    if (fits) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The hierarchies that may limit the process by a controller, as far as they are mounted. A system
// may have one of each version.
std::vector<Hierarchy> hierarchies(const std::string& root, std::string_view controller) {
  std::vector<Hierarchy> found;
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, base, point, word, type, source, options;
    fields >> id >> parent >> device >> base >> point;
    while (fields >> word && word != "-") {
    }
    fields >> type >> source >> options;
    const bool is_v2 = type == "cgroup2";
    if (!is_v2 && !(type == "cgroup" && has_word(options, controller))) continue;
    const auto path = group_path(root, is_v2 ? "" : controller);
    if (!path) continue;
    Hierarchy hierarchy{is_v2, {}};
    const std::string top = root + point;
    for (std::string own = below(*path, base); !own.empty(); own.resize(own.rfind('/'))) {
      hierarchy.folders.push_back(top + own);
    }
    hierarchy.folders.push_back(top);
    found.push_back(std::move(hierarchy));
  }
  return found;
}

// The first number of a file; none if there is no such file, or it begins with a word ("max").
std::optional<std::int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// Bytes that the kernel would give back before it refuses any: files, and its own caches.
std::int64_t reclaimable(const Hierarchy& hierarchy, const std::string& folder) {
  const std::vector<std::string> names =
      hierarchy.is_v2 ? std::vector<std::string>{"inactive_file", "active_file", "slab_reclaimable"}
                      : std::vector<std::string>{"total_inactive_file", "total_active_file"};
  std::ifstream file(folder + "/memory.stat");
  std::int64_t bytes = 0, total = 0;
  for (std::string name; file >> name >> bytes;) {
    if (std::find(names.begin(), names.end(), name) != names.end()) total += bytes;
  }
  return total;
}

std::int64_t group_memory(const Hierarchy& hierarchy, const std::string& folder) {
  const bool is_v2 = hierarchy.is_v2;
  const auto limit = read_number(folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto used = read_number(folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used) return kUnlimited;
  const std::int64_t kept = std::max<std::int64_t>(*used - reclaimable(hierarchy, folder), 0);
  return std::max<std::int64_t>(*limit - kept, 0);
}

// Whole processors of a group's quota.
std::int64_t group_cpus(const Hierarchy& hierarchy, const std::string& folder) {
  std::int64_t quota = 0, period = 0;
  if (hierarchy.is_v2) {
    std::ifstream file(folder + "/cpu.max");
    if (!(file >> quota >> period)) return kUnlimited;
  } else {
    quota = read_number(folder + "/cpu.cfs_quota_us").value_or(-1);
    period = read_number(folder + "/cpu.cfs_period_us").value_or(0);
  }
  if (quota <= 0 || period <= 0) return kUnlimited;
  return std::max<std::int64_t>(quota / period, 1);
}

template <class Allowed>
std::int64_t least_allowed(const std::string& root, std::string_view controller,
                           const Allowed& allowed) {
  std::int64_t least = kUnlimited;
  for (const Hierarchy& hierarchy : hierarchies(root, controller)) {
    for (const std::string& folder : hierarchy.folders) {
      least = std::min(least, allowed(hierarchy, folder));
    }
  }
  return least;
}

std::int64_t machine_memory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string name; file >> name;) {
    std::int64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return std::int64_t{::sysconf(_SC_AVPHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

std::int64_t available_memory(const std::string& root) {
  return std::min(machine_memory(root), least_allowed(root, "memory", group_memory));
}

int usable_cpus(const std::string& root) {
  const std::int64_t quota = least_allowed(root, "cpu", group_cpus);
  return static_cast<int>(std::min<std::int64_t>(omp_get_num_procs(), quota));
}

std::string missing_instructions(const std::string& names, const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  std::set<std::string, std::less<>> here;
  for (std::string line; here.empty() && std::getline(file, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) here.insert(word);
  }
  std::string missing;
  std::istringstream wanted(here.empty() ? "" : names);
  for (std::string word; wanted >> word;) {
    if (!here.contains(word)) missing += (missing.empty() ? "" : " ") + word;
  }
  return missing;
}

int default_threads(int threads) {
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const char* chosen = std::getenv(name);
    if (chosen != nullptr && *chosen != '\0') return threads;
  }
  return std::min(threads, usable_cpus());
}

}  // namespace trtspec
