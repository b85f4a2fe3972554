#include "server/exec/command_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/code/kernel.h"
#include "server/exec/room.h"

const char *tensor_path(unsigned i)
{
    static char paths[SEQUENCE_TENSORS_MAX][sizeof("tensors[2047].")];

    if (!paths[i][0])
        snprintf(paths[i], sizeof(paths[i]), "tensors[%u].", i % SEQUENCE_TENSORS_MAX);
    return paths[i];
}

void command_list_init_single(struct run *run, unsigned n_tensors)
{
    run->commands = (struct command_list){
        .n_tensors = n_tensors,
        .n_steps = 1,
        .tensors = run->one_tensors,
        .refs = run->one_refs,
        .steps = &run->one_step,
        .ops = &run->one_op,
        .kernels = &run->one_kernel,
        .search_steps = STEP_SEARCH_MAX,
    };
    for (unsigned i = 0; i < n_tensors; i++) {
        run->one_refs[i].mapping = NULL;
        run->one_refs[i].shared = NULL;
        run->one_refs[i].waiting = false;
        run->one_step.tensors[i] = (uint16_t)i;
    }
    run->one_kernel = NULL;
    run->one_step.variant[0] = run->one_step.variant_used[0] = '\0';
}

/* `count` items of `size` bytes at *at, which moves on. */
static void *carve(char **at, size_t count, size_t size)
{
    const size_t alignment = _Alignof(max_align_t);
    char *start = *at;

    *at += (count * size + alignment - 1) / alignment * alignment;
    return start;
}

int command_list_new(struct command_list *ret_commands, unsigned n_tensors, unsigned n_steps,
                     struct command_memory *counted_in, struct error *e)
{
    const size_t slack = 5 * _Alignof(max_align_t);
    struct command_list b = {.n_tensors = n_tensors, .n_steps = n_steps, .search_steps = STEP_SEARCH_MAX};
    char *at;

    b.bytes = (n_tensors + 1) * (sizeof(*b.tensors) + sizeof(*b.refs)) +
              n_steps * (sizeof(*b.steps) + sizeof(*b.ops) + sizeof(*b.kernels)) + slack;
    at = calloc(1, b.bytes);

    if (!at)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %u ops", n_steps);
    b.memory = at;
    /* The extra tensor has no memory: null pointers refer to it. */
    b.tensors = carve(&at, n_tensors + 1, sizeof(*b.tensors));
    b.refs = carve(&at, n_tensors + 1, sizeof(*b.refs));
    b.steps = carve(&at, n_steps, sizeof(*b.steps));
    b.ops = carve(&at, n_steps, sizeof(*b.ops));
    b.kernels = carve(&at, n_steps, sizeof(*b.kernels));
    b.counted_in = counted_in;
    *counted_in->bytes += b.bytes;
    charge_count(&b.charge, counted_in->account, counted_in->quota, b.bytes);
    *ret_commands = b;
    return 0;
}

void command_list_move(struct command_list *commands, struct command_memory *counted_in)
{
    *commands->counted_in->bytes -= commands->bytes;
    *counted_in->bytes += commands->bytes;
    commands->counted_in = counted_in;
    charge_free(&commands->charge);
    charge_count(&commands->charge, counted_in->account, counted_in->quota, commands->bytes);
}

void command_list_unuse(struct command_list *commands)
{
    for (unsigned i = 0; i < commands->n_tensors; i++) {
        struct operand_ref *ref = &commands->refs[i];

        if (ref->waiting)
            mapping_stop_waiting(&ref->waiter);
        ref->waiting = false;
        ref->shared = shared_charge_unref(ref->shared);
        if (ref->mapping)
            mapping_unuse(ref->mapping);
        ref->mapping = NULL;
    }
}

void command_list_release(struct command_list *commands)
{
    command_list_unuse(commands);
    for (unsigned i = 0; i < commands->n_steps; i++)
        kernel_unref(commands->kernels[i]);
    if (commands->counted_in) {
        *commands->counted_in->bytes -= commands->bytes;
        charge_free(&commands->charge);
    }
    free(commands->memory);
    *commands = (struct command_list){0};
}

struct op_call command_list_call(const struct command_list *commands, unsigned i)
{
    const struct step *step = &commands->steps[i];
    const unsigned operands = step_operands(step);
    struct op_call call = {.op = commands->ops[i]};

    for (unsigned o = 0; o < operands; o++)
        call.tensors[o] = &commands->tensors[step->tensors[o]];
    memcpy(call.attrs, step->attrs, sizeof(call.attrs));
    return call;
}
