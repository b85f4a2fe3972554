/* A compiler with real helper processes: this program itself, called with --compile-helper. */
#ifndef KOPS_TESTS_HELPER_SUPPORT_H
#define KOPS_TESTS_HELPER_SUPPORT_H

#include <sys/types.h>

#include "compile/compiler.h"
#include "tests/support/unit.h"

struct fixture {
    uv_loop_t loop;
    struct compiler_config config;
    struct compiler *compiler;
    bool closed;
};

struct outcome {
    uv_loop_t *loop;
    bool done;
    struct compiled *compiled;
    struct error error;
    char reason[16]; /* "": none */
    char *log;
};

/* Skips the test where NVRTC or the sandbox is missing. The second opens with other settings, set in f->config. Closed
 * with the test, an OPENING_TEST, which waits until the compiler is, and asserts that it leaves no handle behind. */
struct fixture *fixture_open(void);
struct fixture *fixture_open_with(void (*change)(struct compiler_config *config));
/* Starts a compile of one source for sm_90a; `entries` is ended by a NULL. What comes of it goes with the test. */
struct compile_job *compile_start(struct fixture *f, const char *source, const char *const *entries, struct outcome *o);
struct compile_job *compile_start_input(struct fixture *f, const struct compile_input *input, struct outcome *o);
void compile_wait(struct fixture *f, struct outcome *o);
/* Both, for one entry. */
struct outcome compile_one(struct fixture *f, const char *source, const char *entry);

/* Asserts that it is compiled; a failure with this reason. */
void assert_compiles(struct fixture *f, const char *source, const char *entry);
void assert_failed(const struct outcome *o, enum error_code code, const char *reason);

/* Helper processes of this program; the first `max` are told. */
unsigned helper_pids(pid_t *pids, unsigned max);
unsigned open_descriptors(void);
/* Lets the loop run until `true_now` says so. */
void run_until(struct fixture *f, bool (*true_now)(void *context), void *context);

#define SIMPLE_KERNEL                                                                                                  \
    "extern \"C\" __global__ void add(float *c, const float *a, const float *b, int n)\n"                              \
    "{\n"                                                                                                              \
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"                                                             \
    "    if (i < n)\n"                                                                                                 \
    "        c[i] = a[i] + b[i];\n"                                                                                    \
    "}\n"

#endif
