/* What the tests of the CUDA backend share: the backend opened over the stand-in driver, its control page, tensors and
 * jobs on it. */
#ifndef KOPS_TEST_CUDA_SUPPORT_H
#define KOPS_TEST_CUDA_SUPPORT_H

#include "backend/backend.h"
#include "backend/memory.h"
#include "core/kernel.h"
#include "standin_cuda/control.h"
#include "tests/support/unit.h"
#include "tests/unit/memory_id_of.h"

enum { SAMPLES_MAX = 2048 };

extern const struct backend *backend;
extern struct backend_device *device;
extern struct standin_control *control;
extern struct backend_host test_host;     /* wakes wait_for_wake() */
extern struct backend_config test_config; /* of the next devices, but for cuBLASLt's path */

/* Opens the backend's devices, which are not active then. */
void describe_devices(const char *blaslt, struct backend_device **ret_devices, unsigned wanted);

/* Group fixtures: a process with one device. `blaslt` is cuBLASLt's path, or "none". */
int open_device(const char *blaslt);
int setup(void **state);
int teardown(void **state); /* nothing was misused, and unless the device is lost nothing is left */
/* The teardown of each test: what it has opened is closed, and then the device has no more memory than at the group's
 * begin, unless it is lost. begin_tests() is the end of a group's setup. */
int end_test(void **state);
void begin_tests(void);
void expect_memory_as_at_begin(void);
#define CUDA_TEST(test) TEST_WITH(test, NULL, end_test)
void expect_nothing_lives(void);

/* ---- the control page ---- */

int64_t counter(enum standin_counter_id id); /* of this process */
uint64_t calls(const char *function);
void gate_close(enum standin_gate_id gate);
void gate_open(enum standin_gate_id gate);
void gate_pass_one(enum standin_gate_id gate);
void wait_at_gate(enum standin_gate_id gate, uint64_t waiting);
/* The next call of the function fails; inject_later(): the `countdown`-th from now. */
void inject(const char *function, int error, bool sticky);
void inject_later(const char *function, unsigned countdown, int error, bool sticky);

/* ---- memory ---- */

struct backend_memory *device_memory(uint64_t size);
struct backend_memory *host_memory(uint64_t size);

static inline float *floats(const struct backend_memory *m)
{
    return (float *)(m->host ? m->host : (unsigned char *)(uintptr_t)m->address);
}

/* Small numbers that f32 adds and multiplies exactly, different for every seed. */
void fill(struct backend_memory *m, unsigned count, unsigned seed);
float value(unsigned index, unsigned seed);

/* ---- jobs ---- */

struct view {
    struct backend_memory *memory;
    uint64_t offset; /* elements */
    unsigned rank;
    int64_t shape[TENSOR_MAX_RANK];
    int64_t strides[TENSOR_MAX_RANK];
    bool strided;     /* else row-major */
    enum dtype dtype; /* 0: f32 */
};

struct test_job {
    struct backend_job job;
    struct step step;
    double samples[SAMPLES_MAX];
    bool done;
};

#define VECTOR(m, n)    ((struct view){.memory = (m), .rank = 1, .shape = {(n)}})
#define MATRIX(m, r, c) ((struct view){.memory = (m), .rank = 2, .shape = {(r), (c)}})

/* Plans the op over views, inputs then output; one timed execution. Attributes have their declared defaults. */
void make_job(struct test_job *t, enum op_id op, const struct view *views);
void make_gemm(struct test_job *t, const struct view *views, double alpha, double beta);
void make_linear(struct test_job *t, const struct view *views, unsigned activation); /* LINEAR_ACTIVATION_… */

/* The done() of every test_job. */
void job_done(struct backend_job *job);

struct backend_stream *stream_open(void);
/* Whether a thread would prepare the job. */
bool needs_prepare(const struct test_job *t);
/* As the server's loop does: poll, arm, sleep until woken; until the job is done. */
void finish(struct test_job *t);
/* check(), then submit(); returns when no thread prepares the job. */
void start_job(struct backend_stream *stream, struct test_job *t);
/* Both; the job must fail with that code, or must not fail. */
void run_failing(struct backend_stream *stream, struct test_job *t, enum error_code code);
void run_job(struct backend_stream *stream, struct test_job *t);
/* Sleeps until the backend calls. */
void wait_for_wake(void);

/* ---- users' kernels: tests/standin_cuda/user_kernels.cu loaded as a cubin, and jobs that launch what is in it ---- */

/* One parameter: a tensor of `bytes` from `offset` (bytes), or an int. */
struct arg {
    enum { ARG_IN, ARG_OUT, ARG_INT } kind;
    struct backend_memory *memory;
    uint64_t offset, bytes;
    int number;
    bool sparse;
};

#define IN(m, n)  ((struct arg){.kind = ARG_IN, .memory = (m), .bytes = (n) * sizeof(float)})
#define OUT(m, n) ((struct arg){.kind = ARG_OUT, .memory = (m), .bytes = (n) * sizeof(float)})
#define INT(n)    ((struct arg){.kind = ARG_INT, .number = (n)})

unsigned char *read_file(const char *path, size_t *ret_size);
/* The code of KOPS_TEST_CUBIN on `device`. */
struct backend_code *load_code(void);
/* The function lives as long as the process. */
const struct backend_function *load_function(struct backend_code *code, const char *name);

/* A job of one launch of the function over `threads` threads in blocks of 256; one timed execution. */
void make_kernel_job(struct test_job *t, const struct backend_function *function, unsigned threads,
                     const struct arg *args, unsigned n_args);
#define KERNEL_JOB(t, f, threads, ...)                                                                                 \
    make_kernel_job((t), (f), (threads), (const struct arg[]){__VA_ARGS__},                                            \
                    sizeof((const struct arg[]){__VA_ARGS__}) / sizeof(struct arg))

#endif
