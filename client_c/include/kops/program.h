/**
 * @file program.h
 * @brief Several ops in one request: sequences (sent each time) and programs (defined once). <kops/kops.h> includes it.
 *
 * @code
 * // d = (a + b)², twice over
 * const struct kops_tensor tensors[] = {a, b, c, d};
 * const uint32_t add_in[] = {0, 1}, add_out[] = {2}, square_in[] = {2}, square_out[] = {3};
 * const struct kops_step steps[] = {
 *     {.op = "add", .inputs = add_in, .n_inputs = 2, .outputs = add_out, .n_outputs = 1},
 *     {.op = "square", .inputs = square_in, .n_inputs = 1, .outputs = square_out, .n_outputs = 1},
 * };
 * const struct kops_sequence sequence = {tensors, 4, steps, 2};
 * kops_program *program;
 *
 * kops_program_define(client, &sequence, NULL, &program, &error);
 * kops_program_run(program, NULL, 0, NULL, NULL, &error);                    // on a, b
 * const struct kops_binding other[] = {{.tensor = 0, .buffer = x}};
 * kops_program_run(program, other, 1, NULL, NULL, &error);                   // on x, b
 * @endcode
 *
 * Steps run in order, each reads the results of the ones before it. Everything is checked before the first one runs;
 * errors name the place, e.g. `ops[3].in`, and a fault while running has the detail `op_index`. Outputs are then
 * undefined. A result's times are those of the whole sequence, its `variant` is empty. Feature `sequence`, and
 * `program`.
 */
#ifndef KOPS_PROGRAM_H
#define KOPS_PROGRAM_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A step of a sequence: an op, or a launch of a kernel. Its operands are indices into kops_sequence.tensors. */
struct kops_step {
    const char *op;
    const uint32_t *inputs;
    size_t n_inputs;
    const uint32_t *outputs;
    size_t n_outputs;
    const struct kops_attr *attrs;
    size_t n_attrs;
    const char *variant; /**< As kops_options.variant. */

    struct kops_kernel *kernel; /**< A kernel to launch, in place of all members above; NULL: an op. A program keeps the
                                     kernel alive. */
    /** An argument for each parameter: numbers, nulls, and kops_arg_index() for tensors. */
    const struct kops_argument *args;
    size_t n_args;
    const struct kops_launch_geometry *geometry; /**< NULL: the kernel's. */
};

/** Ops in order, at most kops_limits.sequence_ops. Plain data of the caller's, needed until the call that takes it
 * returns. */
struct kops_sequence {
    const struct kops_tensor *tensors;
    size_t n_tensors;
    const struct kops_step *steps;
    size_t n_steps;
};

/** Runs the steps and waits, as kops_run() does. Of the options (NULL: the defaults), `variant` must be NULL; warmup
 * and repeat count the whole sequence. `ret_result` may be NULL. Errors: as kops_run(); unsupported, limit_exceeded. */
KOPS_API enum kops_code kops_sequence_run(kops_client *client, const struct kops_sequence *sequence,
                                          const struct kops_options *options, struct kops_result *ret_result,
                                          struct kops_error *ret_error);

/** Sends the sequence without waiting, as kops_submit() does: the ticket is for kops_wait(). */
KOPS_API enum kops_code kops_sequence_submit(kops_client *client, const struct kops_sequence *sequence,
                                             const struct kops_options *options, kops_ticket *ret_ticket,
                                             struct kops_error *ret_error);

/** Puts the sequence on a CUDA stream, as kops_enqueue() does one op. */
KOPS_API enum kops_code kops_sequence_enqueue(kops_client *client, const struct kops_sequence *sequence,
                                              const struct kops_options *options, void *cuda_stream,
                                              struct kops_error *ret_error);

/** A sequence that the daemon keeps; on a GPU it becomes a graph at its first run. */
typedef struct kops_program kops_program;

/** Defines a program; `device` as kops_options.device. The members of `sequence` are copied with all that they point
 * to, except the buffers, which belong to the caller and must live as long as the program. After a reconnection the
 * program is defined anew at its next use. Errors: as a run of the sequence, but nothing is run; quota_exceeded. */
KOPS_API enum kops_code kops_program_define(kops_client *client, const struct kops_sequence *sequence,
                                            const char *device, kops_program **ret_program,
                                            struct kops_error *ret_error);

/** Other memory for one of a program's tensors, which keeps its shape, strides and dtype. */
struct kops_binding {
    uint32_t tensor; /**< Index into kops_sequence.tensors. */
    kops_buffer *buffer;
    uint64_t offset; /**< As kops_tensor.offset. */
};

/** Runs the program and waits. The bindings hold for this run only. Of the options, `variant` and `device` must be
 * NULL. Errors: as kops_run(). */
KOPS_API enum kops_code kops_program_run(kops_program *program, const struct kops_binding *bindings, size_t n_bindings,
                                         const struct kops_options *options, struct kops_result *ret_result,
                                         struct kops_error *ret_error);

/** Sends a run without waiting: the ticket is for kops_wait(). */
KOPS_API enum kops_code kops_program_submit(kops_program *program, const struct kops_binding *bindings,
                                            size_t n_bindings, const struct kops_options *options,
                                            kops_ticket *ret_ticket, struct kops_error *ret_error);

/** Puts a run on a CUDA stream, as kops_enqueue() does one op. */
KOPS_API enum kops_code kops_program_enqueue(kops_program *program, const struct kops_binding *bindings,
                                             size_t n_bindings, const struct kops_options *options, void *cuda_stream,
                                             struct kops_error *ret_error);

/** Lets the daemon forget the program; runs sent before still finish. Does not wait. Must be the last use of the
 * program. Release it before or after its client is closed, but before its buffers are released. NULL is allowed.
 * Returns NULL. */
KOPS_API kops_program *kops_program_release(kops_program *program);

#ifdef __cplusplus
}
#endif

#endif
