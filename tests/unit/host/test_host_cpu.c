/* What the device says of the machine, and the reading of cgroup quotas. */
#include <ftw.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cpu.h"
#include "cpufreq.h"
#include "support.h"

static char folder[64];

static void write_file(const char *name, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (char *slash = strchr(path + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static unsigned quota(const char *memberships)
{
    char path[128];

    write_file("cgroup", memberships);
    snprintf(path, sizeof(path), "%s/cgroup", folder);
    return cpu_quota(path, folder);
}

static int make_folder(void **state)
{
    snprintf(folder, sizeof(folder), "/tmp/test-kops-cpu-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    return remove(path);
}

static int remove_folder(void **state)
{
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void test_no_quota(void **state)
{
    assert_int_equal(quota("0::/user.slice\n"), 0);
    write_file("user.slice/cpu.max", "max 100000\n");
    assert_int_equal(quota("0::/user.slice\n"), 0);
    assert_int_equal(cpu_quota("/nonexistent", folder), 0);
}

static void test_unified(void **state)
{
    write_file("a/b/cpu.max", "max 100000\n");
    write_file("a/cpu.max", "250000 100000\n");
    assert_int_equal(quota("0::/a/b\n"), 3); /* the parent's counts, rounded up */
    write_file("a/b/cpu.max", "50000 100000\n");
    assert_int_equal(quota("0::/a/b\n"), 1);
    assert_int_equal(quota("0::/not/seen/in/this/container\n"), 0);
}

static void test_legacy(void **state)
{
    write_file("cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
    write_file("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota("5:cpu,cpuacct:/job\n4:memory:/job\n"), 4);
    assert_int_equal(quota("3:cpuset:/job\n4:memory:/job\n"), 0);
    write_file("cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(quota("5:cpu,cpuacct:/job\n"), 0);
}

static void test_device_info(void **state)
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
            write_file(path, first ? fast : slow);
            first = false;
        }
}

static void test_clock_of_the_fastest_processor(void **state)
{
    struct backend_conditions c;

    write_clocks("scaling_cur_freq", "3200000\n", "800000\n");
    write_clocks("cpuinfo_max_freq", "3500000\n", "3000000\n");
    cpufreq_conditions(folder, &c);
    assert_string_equal(c.missing, "");
    assert_float_equal(c.clock_mhz, 3200, 1e-3);
    assert_float_equal(c.clock_max_mhz, 3500, 1e-3);
    assert_true(isnan(c.temperature_c) && isnan(c.power_w));
}

static void test_no_cpufreq(void **state)
{
    struct backend_conditions c;

    cpufreq_conditions("/nonexistent", &c);
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

static void test_instruction_sets(void **state)
{
    static const char *const avx2[] = {" avx ", " avx2 ", " fma ", " bmi2 ", " f16c ", NULL};
    static const char *const avx512[] = {" avx512f ", " avx512bw ", " avx512cd ", " avx512dq ", " avx512vl ", NULL};

    assert_int_equal(cpu_has(CPU_AVX2), listed(avx2));
    assert_int_equal(cpu_has(CPU_AVX512), listed(avx2) && listed(avx512));
    assert_true(cpu_has(CPU_GENERIC));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_quota, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_unified, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_legacy, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_clock_of_the_fastest_processor, make_folder, remove_folder),
        cmocka_unit_test(test_no_cpufreq),
        cmocka_unit_test_teardown(test_device_info, close_opened),
#ifdef __x86_64__
        cmocka_unit_test(test_instruction_sets),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
