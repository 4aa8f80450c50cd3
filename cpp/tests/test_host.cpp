#include <omp.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "check.hpp"
#include "trtspec/host.hpp"

using trtspec::available_memory;
using trtspec::default_threads;
using trtspec::usable_cpus;

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMeminfo = 8000 * 1024;
constexpr const char* kV1 =
    "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

using Files = std::map<std::string, std::string>;

// A machine with 8000 KiB to spare, whose control groups are `files` under /sys/fs/cgroup.
class Machine {
 public:
  Machine(const std::string& mounts, const std::string& groups, const Files& files) {
    root_ = fs::temp_directory_path() / ("test_host_" + std::to_string(::getpid()));
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal: 16000 kB\nMemFree: 100 kB\nMemAvailable: 8000 kB\n");
    write("proc/self/mountinfo", "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw\n" + mounts);
    write("proc/self/cgroup", groups);
    for (const auto& [name, content] : files) write("sys/fs/cgroup/" + name, content);
  }
  ~Machine() { fs::remove_all(root_); }

  std::int64_t memory() const { return available_memory(root_.string()); }
  std::string lacks(const std::string& names) const {
    return trtspec::missing_instructions(names, root_.string());
  }
  void says(const std::string& cpuinfo) { write("proc/cpuinfo", cpuinfo); }
  int cpus() const { return usable_cpus(root_.string()); }

 private:
  void write(const std::string& name, const std::string& content) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << content;
  }

  fs::path root_;
};

std::string v2_mount(const std::string& base = "/") {
  return "29 24 0:25 " + base +
         " /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw\n";
}

Machine v2(const std::string& group, const Files& files) {
  return Machine(v2_mount(), "0::" + group + "\n", files);
}

void test_without_limits() {
  CHECK_EQ(Machine("", "", {}).memory(), kMeminfo);
  CHECK_EQ(Machine("", "", {}).cpus(), omp_get_num_procs());
  const Files none{
      {"memory.max", "max\n"}, {"memory.current", "5000\n"}, {"cpu.max", "max 100000\n"}};
  CHECK_EQ(v2("/", none).memory(), kMeminfo);
  CHECK_EQ(v2("/", none).cpus(), omp_get_num_procs());
  const Files none_v1{{"memory/memory.limit_in_bytes", "9223372036854771712\n"},
                      {"memory/memory.usage_in_bytes", "5000\n"},
                      {"cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
                      {"cpu,cpuacct/cpu.cfs_period_us", "100000\n"}};
  const Machine machine(kV1, "4:memory:/\n5:cpu,cpuacct:/\n", none_v1);
  CHECK_EQ(machine.memory(), kMeminfo);
  CHECK_EQ(machine.cpus(), omp_get_num_procs());
}

void test_memory_of_a_container() {
  Files files{{"memory.max", "1000000\n"}, {"memory.current", "400000\n"}};
  CHECK_EQ(v2("/", files).memory(), 600000);
  // Files that were read lately and others, and what the kernel keeps of them.
  files["memory.stat"] =
      "anon 1\nfile 350000\nfile_mapped 7\ninactive_file 200000\nactive_file 100000\n"
      "slab_reclaimable 50000\nslab_unreclaimable 9\n";
  CHECK_EQ(v2("/", files).memory(), 950000);
  files["memory.current"] = "1200000\n";  // above a limit that was lowered
  files["memory.stat"] = "inactive_file 0\n";
  CHECK_EQ(v2("/", files).memory(), 0);
  files["memory.max"] = "1000000000000\n";
  CHECK_EQ(v2("/", files).memory(), kMeminfo);
}

void test_the_least_of_all_groups_around() {
  const Files files{{"pod/memory.max", "1000000\n"},     {"pod/memory.current", "900000\n"},
                    {"pod/app/memory.max", "500000\n"},  {"pod/app/memory.current", "100000\n"},
                    {"pod/app/sub/memory.max", "max\n"}, {"pod/app/sub/memory.current", "100000\n"},
                    {"pod/cpu.max", "100000 100000\n"},  {"pod/app/cpu.max", "max 100000\n"},
                    {"other/memory.max", "1\n"},         {"other/memory.current", "1\n"}};
  CHECK_EQ(v2("/pod/app/sub", files).memory(), 100000);
  CHECK_EQ(v2("/pod/app/sub", files).cpus(), 1);
  CHECK_EQ(v2("/pod", files).memory(), 100000);
  CHECK_EQ(v2("/none", files).memory(), kMeminfo);
}

// Without a namespace of its own a container sees its group by the machine's path.
void test_a_mount_of_a_part() {
  const Files files{{"memory.max", "700000\n"},
                    {"memory.current", "0\n"},
                    {"sub/memory.max", "300000\n"},
                    {"sub/memory.current", "0\n"}};
  const auto part = [&](const std::string& group) {
    return Machine(v2_mount("/docker/ab"), "0::" + group + "\n", files).memory();
  };
  CHECK_EQ(part("/docker/ab"), 700000);
  CHECK_EQ(part("/docker/ab/sub"), 300000);
  CHECK_EQ(part("/docker/abc"), 700000);
  CHECK_EQ(part("/../other"), 700000);
}

void test_version_1() {
  const Files files{{"memory/box/memory.limit_in_bytes", "1000000\n"},
                    {"memory/box/memory.usage_in_bytes", "800000\n"},
                    {"memory/box/memory.stat",
                     "cache 1\ninactive_file 5\ntotal_inactive_file 300000\n"
                     "total_active_file 100000\n"},
                    {"cpu,cpuacct/box/cpu.cfs_quota_us", "150000\n"},
                    {"cpu,cpuacct/box/cpu.cfs_period_us", "100000\n"}};
  const Machine machine(kV1, "0::/\n4:memory:/box\n5:cpu,cpuacct:/box/inner\n", files);
  CHECK_EQ(machine.memory(), 600000);
  CHECK_EQ(machine.cpus(), 1);
}

void test_quotas() {
  const int all = omp_get_num_procs();
  const auto cpus = [](const std::string& quota) { return v2("/", {{"cpu.max", quota}}).cpus(); };
  CHECK_EQ(cpus("50000 100000"), 1);
  CHECK_EQ(cpus("199999 100000"), 1);
  CHECK_EQ(cpus("200000 100000"), std::min(2, all));
  CHECK_EQ(cpus("6400000 100000"), std::min(64, all));
  CHECK_EQ(cpus("junk"), all);
}

void test_instructions() {
  Machine machine("", "", {});
  CHECK_EQ(machine.lacks("avx2 amx_tile"), std::string());  // nothing is known
  machine.says("processor\t: 0\nflags\t\t: fpu avx2 fma\nvmx flags\t: amx_tile\n");
  CHECK_EQ(machine.lacks("avx2 fma"), std::string());
  CHECK_EQ(machine.lacks("amx_tile avx2 avx"), std::string("amx_tile avx"));
  machine.says("Features\t: asimd sve\n");
  CHECK_EQ(machine.lacks("asimd sve2"), std::string("sve2"));
}

void test_default_threads() {
  ::unsetenv("OMP_NUM_THREADS");
  ::unsetenv("MKL_NUM_THREADS");
  CHECK_EQ(default_threads(1), 1);
  CHECK_EQ(default_threads(1000), usable_cpus());
  ::setenv("OMP_NUM_THREADS", "1000", 1);
  CHECK_EQ(default_threads(1000), 1000);
}

}  // namespace

int main() {
  test_without_limits();
  test_memory_of_a_container();
  test_the_least_of_all_groups_around();
  test_a_mount_of_a_part();
  test_version_1();
  test_quotas();
  test_instructions();
  test_default_threads();
  return check_result();
}
