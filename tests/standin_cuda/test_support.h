/* What the driver's tests share. Each test runs in a process of its own, since some of them break the context. */
#ifndef KOPS_STANDIN_TEST_SUPPORT_H
#define KOPS_STANDIN_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cuda.h>

#include "control.h"

#define ok(call)      assert_int_equal((call), CUDA_SUCCESS)
#define COUNTER(name) counter(STANDIN_COUNTER_##name)

struct driver_test {
    const char *name;
    void (*function)(void); /* the primary context of device 0 is current */
};

#define DRIVER_TEST(name)                                                                                              \
    {                                                                                                                  \
#name, name                                                                                                    \
    }

extern struct standin_control *control;
extern struct standin_row *row; /* this process's */

int64_t counter(enum standin_counter_id id);
/* Polls: the other side is a thread of the driver. The bound only ends a test that has failed. */
void wait_until(_Atomic uint64_t *value, uint64_t is);
CUfunction kernel(const char *name);
/* a[i] = a[i]² for n floats. */
void launch_square(CUdeviceptr a, uint64_t n, CUstream stream);

CUstream new_stream(void); /* CU_STREAM_NON_BLOCKING */
/* 16 floats. */
void set_floats(CUdeviceptr a, float value);
CUdeviceptr new_floats(float value);
float first_of(CUdeviceptr a);

int run_driver_tests(int argc, char **argv, const struct driver_test *tests, size_t n);

#endif
