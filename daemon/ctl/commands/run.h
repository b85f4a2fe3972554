/* Options of `kopsctl run`. `kopsctl tune` shares the op, its shapes and attributes; `kopsctl launch` the operands. */
#ifndef KOPS_CTL_RUN_H
#define KOPS_CTL_RUN_H

#include "base/ctl.h"
#include "data/data.h"
#include "view/rows.h"

/* A tensor and its memory: shared, or the device's with a copy here. */
struct operand {
    struct kops_tensor tensor; /* contiguous */
    kops_buffer *buffer;       /* NULL: empty */
    size_t bytes;
    void *host, *copy; /* host: the mapping, or the copy, which this struct owns */
};

/* Fills `bytes` from the tensor's shape; false: too many elements. */
bool operand_measure(struct operand *o);

/* Makes zeroed memory for the operand; `device` of device memory. Prints the error. Call operand_free() in any case. */
enum ctl_exit operand_make(struct ctl *ctl, struct operand *o, bool device_memory, const char *device);
void operand_free(struct operand *o);

/* Copies between the copy and device memory; nothing to do for shared memory. */
enum kops_code operand_push(struct operand *o, struct kops_error *error);
enum kops_code operand_pull(struct operand *o, struct kops_error *error);

enum { RUN_MAX_ATTRS = 16 };

struct run_args {
    const char *op_name, *shapes, *out_shape, *device, *variant;
    const char *attr_texts[RUN_MAX_ATTRS];
    size_t n_attrs;
    enum kops_dtype dtype;
    uint64_t warmup, repeat, seed;
    unsigned device_memory;
    bool check;
    bool counters; /* count on the GPU, with these caches, in place of timing */
    enum kops_counter_caches caches;
};

struct run {
    const struct run_args *args;
    const struct kops_op *op;
    const struct reference *reference; /* NULL: unknown op */
    struct operand operands[CASE_MAX_INPUTS + 1];
    size_t n_inputs;
    struct kops_attr attrs[RUN_MAX_ATTRS];
    char names[RUN_MAX_ATTRS][48];
    struct reference_case c;
    void *before;                      /* out's random data before the run, where it is read */
    bool zeros;                        /* the data could not be written */
    struct conditions_pair conditions; /* read around several executions */
};

/* Rows of an option table: the op's shapes, dtype, attributes and device. */
#define RUN_PROBLEM_OPTIONS(args)                                                                                      \
    {"--shape", 's', OPTION_TEXT, &(args)->shapes},                                                                    \
        {"--dtype", 't', OPTION_TAKE, &(args)->dtype, .take = run_take_dtype},                                         \
        {"--device", 'd', OPTION_TEXT, &(args)->device}, {"--attr", 'a', OPTION_TAKE, args, .take = run_take_attr},    \
    {                                                                                                                  \
        "--out-shape", 0, OPTION_TEXT, &(args)->out_shape                                                              \
    }

/* The words of --memory. */
#define RUN_MEMORY                                                                                                     \
    "is `shared` or `device`", .words = (const char *[])                                                               \
    {                                                                                                                  \
        "shared", "device", NULL                                                                                       \
    }

/* Take an option (OPTION_TAKE) into an enum kops_dtype, or a struct run_args. */
enum ctl_exit run_take_dtype(void *dtype, const char *value);
enum ctl_exit run_take_attr(void *args, const char *value);

/* Takes the op, which follows all options. */
enum ctl_exit run_take_op(struct run_args *a, int argc, char **argv);

/* Asks the daemon for the op, and fills the attributes by the types that it declares, the operands' tensors from
 * --shape, and the reference's needs. Call it after ctl_connect(). */
enum ctl_exit run_resolve(struct ctl *ctl, struct run *r);

/* Makes the request for libkops. `samples` may be NULL. */
struct kops_request run_make_request(const struct run *r, double *samples);

#endif
