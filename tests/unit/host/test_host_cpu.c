/* What the device says of the machine, and the reading of cgroup quotas. */
#include <math.h>
#include <sched.h>
#include <stdio.h>

#include "cpu.h"
#include "support.h"
#include "tests/support/folder.h"

static const char *folder;

static int make_folder(void **state)
{
    folder = folder_new();
    return 0;
}

static unsigned quota(const char *memberships)
{
    return cpu_quota(folder_put(folder, "cgroup", memberships), folder);
}

TEST_WITH(test_no_quota, make_folder, close_opened)
{
    assert_int_equal(quota("0::/user.slice\n"), 0);
    folder_put(folder, "user.slice/cpu.max", "max 100000\n");
    assert_int_equal(quota("0::/user.slice\n"), 0);
    assert_int_equal(cpu_quota("/nonexistent", folder), 0);
}

TEST_WITH(test_unified, make_folder, close_opened)
{
    folder_put(folder, "a/b/cpu.max", "max 100000\n");
    folder_put(folder, "a/cpu.max", "250000 100000\n");
    assert_int_equal(quota("0::/a/b\n"), 3); /* the parent's counts, rounded up */
    folder_put(folder, "a/b/cpu.max", "50000 100000\n");
    assert_int_equal(quota("0::/a/b\n"), 1);
    assert_int_equal(quota("0::/not/seen/in/this/container\n"), 0);
}

TEST_WITH(test_legacy, make_folder, close_opened)
{
    folder_put(folder, "cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
    folder_put(folder, "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota("5:cpu,cpuacct:/job\n4:memory:/job\n"), 4);
    assert_int_equal(quota("3:cpuset:/job\n4:memory:/job\n"), 0);
    folder_put(folder, "cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(quota("5:cpu,cpuacct:/job\n"), 0);
}

OPENING_TEST(test_device_info)
{
    struct fixture f = fixture_open(NULL);

    assert_string_equal(f.device->info.uuid, "host");
    assert_true(strlen(f.device->info.name) > 0);
    assert_string_equal(f.device->info.arch, cpu_arch());
    assert_int_equal(f.device->info.compute_units, cpu_threads());
    assert_true(f.device->info.memory_bytes > 1 << 20);
    assert_true(f.device->backend == &host_backend);
    f = fixture_open(&(struct backend_config){.host_threads = 3});
    assert_int_equal(f.device->info.compute_units, 3);
}

/* Every processor that the process may use has the same file; the first of them is faster. */
static void write_clocks(const char *name, const char *fast, const char *slow)
{
    bool first = true;
    cpu_set_t usable;
    char path[64];

    assert_int_equal(sched_getaffinity(0, sizeof(usable), &usable), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &usable)) {
            snprintf(path, sizeof(path), "cpu%d/cpufreq/%s", cpu, name);
            folder_put(folder, path, first ? fast : slow);
            first = false;
        }
}

TEST_WITH(test_clock_of_the_fastest_processor, make_folder, close_opened)
{
    struct backend_conditions c;

    write_clocks("scaling_cur_freq", "3200000\n", "800000\n");
    write_clocks("cpuinfo_max_freq", "3500000\n", "3000000\n");
    cpu_conditions(folder, &c);
    assert_string_equal(c.missing, "");
    assert_float_equal(c.clock_mhz, 3200, 1e-3);
    assert_float_equal(c.clock_max_mhz, 3500, 1e-3);
    assert_true(isnan(c.temperature_c) && isnan(c.power_w));
}

TEST(test_no_cpufreq)
{
    struct backend_conditions c;

    cpu_conditions("/nonexistent", &c);
    assert_string_equal(c.missing, "no cpufreq in /nonexistent (virtual machines often have none)");
    assert_true(isnan(c.clock_mhz));
}

#ifdef __x86_64__
/* Whether the kernel lists all of the features. */
static bool listed(const char *const *wanted)
{
    static char text[1 << 16];
    FILE *f = fopen("/proc/cpuinfo", "r");
    char *flags, *end;

    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    flags = strstr(text, "\nflags");
    assert_non_null(flags);
    end = strchr(flags + 1, '\n');
    assert_non_null(end);
    end[0] = ' ';
    end[1] = '\0';
    for (; *wanted; wanted++)
        if (!strstr(flags, *wanted))
            return false;
    return true;
}

TEST(test_instruction_sets)
{
    static const char *const avx2[] = {" avx ", " avx2 ", " fma ", " bmi2 ", " f16c ", NULL};
    static const char *const avx512[] = {" avx512f ", " avx512bw ", " avx512cd ", " avx512dq ", " avx512vl ", NULL};

    assert_int_equal(cpu_has(CPU_AVX2), listed(avx2));
    assert_int_equal(cpu_has(CPU_AVX512), listed(avx2) && listed(avx512));
    assert_true(cpu_has(CPU_GENERIC));
}
#endif
