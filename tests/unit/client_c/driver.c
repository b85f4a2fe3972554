#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "scene.h"

CUcontext context;
CUstream stream;

_Atomic uint64_t *words;
CUdeviceptr words_address;

static struct standin_control *control;
static char control_path[] = "/tmp/test-kops-control-XXXXXX";

int open_control(void **state)
{
    int fd = mkstemp(control_path);

    if (fd < 0 || ftruncate(fd, sizeof(*control)) || fchmod(fd, 0666)) /* executors are another user */
        abort();
    control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED)
        abort();
    close(fd);
    return setenv("KOPS_STANDIN_CONTROL", control_path, 1);
}

int close_control(void **state)
{
    return unlink(control_path);
}

struct standin_fault *fail_next(const char *function, unsigned times, int error, bool sticky)
{
    struct standin_fault *fault = control->faults;

    while (fault->armed)
        fault++;
    snprintf(fault->function, sizeof(fault->function), "%s", function);
    fault->countdown = 1;
    fault->times = times;
    fault->error = error;
    fault->sticky = sticky;
    fault->pid = 0;
    fault->armed = 1;
    return fault;
}

int load(void **state)
{
    CUdevice device;

    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context) || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))
        fail_msg("no driver");
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(words != MAP_FAILED && !cuMemHostRegister((void *)words, 4096, 2) &&
                !cuMemHostGetDevicePointer(&words_address, (void *)words, 0));
    return 0;
}

CUdeviceptr allocate(size_t size)
{
    CUdeviceptr memory;

    assert_int_equal(cuMemAlloc(&memory, size), 0);
    return memory;
}

void finish(CUstream on)
{
    assert_int_equal(cuStreamSynchronize(on), 0);
}

void launch_graph(CUgraph graph, CUstream on)
{
    CUgraphExec ready = NULL;

    assert_int_equal(cuGraphInstantiateWithFlags(&ready, graph, 0), 0);
    assert_int_equal(cuGraphLaunch(ready, on), 0);
    finish(on);
}

void close_gate(void)
{
    atomic_store(&words[0], 0);
    assert_int_equal(cuStreamWaitValue64(stream, words_address, 1, 0), 0);
}

void open_gate(void)
{
    atomic_store(&words[0], 1);
}

uint64_t launches_here(kops_client *client)
{
    struct kops_stats *stats;
    uint64_t n = 0;

    assert_ok(kops_stats_get(client, NULL, &stats, NULL));
    for (const struct kops_stats_row *const *row = stats->rows; *row; row++)
        n += strcmp((*row)->variant, "here") == 0 ? (*row)->count : 0;
    kops_stats_free(stats);
    return n;
}
