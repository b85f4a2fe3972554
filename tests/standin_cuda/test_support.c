#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/ops/params.h"
#include "test_support.h"

enum { MAX_TESTS = 32, PATIENCE_S = 120 };

struct standin_control *control;
struct standin_row *row;

int64_t counter(enum standin_counter_id id)
{
    return row->counters[id];
}

void wait_until(_Atomic uint64_t *value, uint64_t is)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (unsigned i = 0; i < PATIENCE_S * 1000 && *value != is; i++)
        nanosleep(&pause, NULL);
    assert_int_equal(*value, is);
}

CUfunction kernel(const char *name)
{
    static CUmodule module;
    CUfunction function;

    if (!module)
        ok(cuModuleLoadData(&module, "\x50\xed\x55\xba a fat binary"));
    ok(cuModuleGetFunction(&function, module, name));
    return function;
}

void launch_square(CUdeviceptr a, uint64_t n, CUstream stream)
{
    struct cuda_ops_vector p = {.out = a, .a = a, .count = n, .a_step = 1};
    void *params[] = {&p};

    ok(cuLaunchKernel(kernel("kops_square_f32_vector"), 4, 1, 1, 256, 1, 1, 0, stream, params, NULL));
}

CUstream new_stream(void)
{
    CUstream stream;

    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

void set_floats(CUdeviceptr a, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    ok(cuMemsetD32(a, bits, 16));
    ok(cuCtxSynchronize());
}

CUdeviceptr new_floats(float value)
{
    CUdeviceptr a;

    ok(cuMemAlloc(&a, 64));
    set_floats(a, value);
    return a;
}

float first_of(CUdeviceptr a)
{
    float value;

    ok(cuMemcpyDtoH(&value, a, sizeof(value)));
    return value;
}

/* ---- in a process of its own ---- */

static void run_here(void **state)
{
    const struct driver_test *test = *state;
    CUcontext context;

    alarm(PATIENCE_S); /* a test that hangs has failed */
    ok(cuInit(0));
    for (unsigned i = 0; i < STANDIN_ROWS; i++)
        if (control->rows[i].pid == getpid())
            row = &control->rows[i];
    assert_non_null(row);
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxSetCurrent(context));
    test->function();
}

static int run_one(const char *name, const struct driver_test *tests, size_t n)
{
    int fd = open(getenv("KOPS_STANDIN_CONTROL"), O_RDWR | O_CLOEXEC);

    control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (control == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < n; i++)
        if (strcmp(tests[i].name, name) == 0) {
            const struct CMUnitTest one = {name, run_here, NULL, NULL, (void *)&tests[i]};

            return _cmocka_run_group_tests(name, &one, 1, NULL, NULL);
        }
    return 1;
}

/* With a page of its own, so that no gate or fault of one test reaches another. */
static void run_in_process(void **state)
{
    const struct driver_test *test = *state;
    char path[] = "/tmp/test-kops-standin-XXXXXX";
    int fd = mkstemp(path), status;
    pid_t pid;

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof(*control)), 0);
    close(fd);
    pid = fork();
    if (pid == 0) {
        setenv("KOPS_STANDIN_CONTROL", path, 1);
        execl("/proc/self/exe", "test", test->name, NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    unlink(path);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int run_driver_tests(int argc, char **argv, const struct driver_test *tests, size_t n)
{
    struct CMUnitTest all[MAX_TESTS] = {0};

    if (argc > 1)
        return run_one(argv[1], tests, n);
    for (size_t i = 0; i < n && i < MAX_TESTS; i++)
        all[i] = (struct CMUnitTest){tests[i].name, run_in_process, NULL, NULL, (void *)&tests[i]};
    return _cmocka_run_group_tests("driver", all, n, NULL, NULL);
}
