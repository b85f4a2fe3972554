/* What the device reads of the machine: cgroup quotas, clocks, instruction sets. */
#include <math.h>
#include <sched.h>
#include <stdio.h>

#include "cpu.h"
#include "support.h"
#include "tests/support/folder.h"

OPENING_TEST(test_quotas)
{
    static const struct {
        const char *memberships, *file, *text; /* one more file; NULL: none */
        unsigned processors;
    } steps[] = {
        {"0::/user.slice\n", NULL, NULL, 0},
        {"0::/user.slice\n", "user.slice/cpu.max", "max 100000\n", 0},
        {"0::/a/b\n", "a/b/cpu.max", "max 100000\n", 0},
        {"0::/a/b\n", "a/cpu.max", "250000 100000\n", 3}, /* the parent's counts, rounded up */
        {"0::/a/b\n", "a/b/cpu.max", "50000 100000\n", 1},
        {"0::/not/seen/in/this/container\n", NULL, NULL, 0},
        {"5:cpu,cpuacct:/job\n", "cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n", 0},
        {"5:cpu,cpuacct:/job\n4:memory:/job\n", "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n", 4},
        {"3:cpuset:/job\n4:memory:/job\n", NULL, NULL, 0},
        {"5:cpu,cpuacct:/job\n", "cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n", 0},
    };
    const char *folder = folder_new();

    for (unsigned i = 0; i < COUNT(steps); i++) {
        if (steps[i].file)
            folder_put(folder, steps[i].file, steps[i].text);
        if (cpu_quota(folder_put(folder, "cgroup", steps[i].memberships), folder) != steps[i].processors)
            fail_msg("step %u", i);
    }
    assert_int_equal(cpu_quota("/nonexistent", folder), 0);
}

/* Every processor that the process may use has the same file; the first of them is faster. */
static void write_clocks(const char *folder, const char *name, const char *fast, const char *slow)
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

OPENING_TEST(test_clock_of_the_fastest_processor)
{
    const char *folder = folder_new();
    struct backend_conditions c;

    write_clocks(folder, "scaling_cur_freq", "3200000\n", "800000\n");
    write_clocks(folder, "cpuinfo_max_freq", "3500000\n", "3000000\n");
    cpu_conditions(folder, &c);
    assert_string_equal(c.missing, "");
    assert_float_equal(c.clock_mhz, 3200, 1e-3);
    assert_float_equal(c.clock_max_mhz, 3500, 1e-3);
    assert_true(isnan(c.temperature_c) && isnan(c.power_w));
    cpu_conditions("/nonexistent", &c);
    assert_string_equal(c.missing, "no cpufreq in /nonexistent (virtual machines often have none)");
    assert_true(isnan(c.clock_mhz));
}

#ifdef __x86_64__
/* Whether the kernel lists all of the features, in text with a blank on each side of them. */
static bool listed(const char *flags, const char *const *wanted)
{
    for (; *wanted; wanted++)
        if (!strstr(flags, *wanted))
            return false;
    return true;
}

TEST(test_instruction_sets)
{
    static const char *const avx2[] = {" avx ", " avx2 ", " fma ", " bmi2 ", " f16c ", NULL};
    static const char *const avx512[] = {" avx512f ", " avx512bw ", " avx512cd ", " avx512dq ", " avx512vl ", NULL};
    char line[1 << 14] = "";
    FILE *f = fopen("/proc/cpuinfo", "re");

    assert_non_null(f);
    while (strncmp(line, "flags", 5) != 0)
        assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    line[strcspn(line, "\n")] = ' ';
    assert_int_equal(cpu_has(CPU_AVX2), listed(line, avx2));
    assert_int_equal(cpu_has(CPU_AVX512), listed(line, avx2) && listed(line, avx512));
    assert_true(cpu_has(CPU_GENERIC));
}
#endif
