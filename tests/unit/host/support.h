/* What the host backend's tests share: a device whose jobs are waited for, tensors of any layout in memory whose
 * surroundings are watched, and arithmetic on every dtype in f64 that shares no code with the kernels. */
#ifndef KOPS_TESTS_HOST_SUPPORT_H
#define KOPS_TESTS_HOST_SUPPORT_H

#include "backend/backend.h"
#include "tests/support/unit.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const enum dtype all_dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16}; /* of gemm */
static const enum dtype number_dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_I8,  DTYPE_U8,
                                           DTYPE_I16, DTYPE_U16, DTYPE_I32, DTYPE_U32,  DTYPE_I64, DTYPE_U64};

/* ---- numbers ---- */

/* The same sequence in every run. */
uint64_t random_bits(void);

double decode(enum dtype dtype, const void *from);
/* Rounded to nearest even. */
void encode(enum dtype dtype, double value, void *into);

/* ---- tensors ---- */

enum layout { CONTIGUOUS, TRANSPOSED, SLICE, STRIDED, OFFSET };

/* A tensor in a memory of its own, with room around and, by layout, between its elements. */
struct operand {
    struct tensor tensor;
    struct backend_memory memory;
    unsigned char *before; /* the memory's bytes when the job was made */
};

/* Random contents everywhere; they go with the test, an OPENING_TEST. */
void operand_init(struct operand *o, enum dtype dtype, unsigned rank, const int64_t *shape, enum layout layout);
/* The address of the element with that row-major index. */
unsigned char *operand_at(const struct operand *o, uint64_t index);
double operand_get(const struct operand *o, uint64_t index);
/* The element as it was when the job was made. */
double operand_get_before(const struct operand *o, uint64_t index);
/* Its bits, in the low ones. */
uint64_t operand_bits_before(const struct operand *o, uint64_t index);
/* Fails the test if a byte outside the tensor's elements changed since the job was made. */
void operand_check_surroundings(const struct operand *o);

/* ---- jobs ---- */

struct fixture {
    struct backend_device *device;
    struct backend_stream *stream;
    int event; /* written by wake() */
};

/* `config` may be NULL. Closed at the test's end, the last one that was opened first. */
struct fixture fixture_open(const struct backend_config *config);

/* Polls, blocking until wake() in between, until `job` is done; NULL: until every job is. */
void fixture_wait(struct fixture *f, struct backend_job *job);

/* Plans op(inputs) → out and fills the job; operands' memory is remembered for the checks above. */
void job_init(struct backend_job *job, enum op_id op, struct operand *const *inputs, struct operand *out,
              const union op_attr_value *attrs);
/* One more stream of the fixture's device. */
struct backend_stream *stream_open(const struct fixture *f);
/* Submits on the fixture's stream and waits. */
void job_run(struct fixture *f, struct backend_job *job);
bool job_is_done(const struct backend_job *job);

#endif
