#include "server/body.h"

#include "server/kernel.h"

#include <stdio.h>
#include <stdlib.h>

const char *tensor_path(unsigned i)
{
    static char paths[SEQUENCE_TENSORS_MAX][sizeof("tensors[2047].")];

    if (!paths[i][0])
        snprintf(paths[i], sizeof(paths[i]), "tensors[%u].", i % SEQUENCE_TENSORS_MAX);
    return paths[i];
}

void body_init_single(struct run *run, unsigned n_tensors)
{
    run->body = (struct body){
        .n_tensors = n_tensors,
        .n_calls = 1,
        .tensors = run->one_tensors,
        .refs = run->one_refs,
        .calls = &run->one_call,
        .steps = &run->one_step,
        .search_steps = BODY_SEARCH_STEPS,
    };
    for (unsigned i = 0; i < n_tensors; i++) {
        run->one_refs[i].mapping = NULL;
        run->one_refs[i].hold = NULL;
        run->one_refs[i].waiting = false;
        run->one_call.tensors[i] = (uint16_t)i;
        run->one_call.call.tensors[i] = &run->one_tensors[i];
    }
    run->one_call.kernel = NULL;
    run->one_step.variant = run->one_step.variant_used = NULL;
}

/* `count` items of `size` bytes at *at, which moves on. */
static void *carve(char **at, size_t count, size_t size)
{
    const size_t alignment = _Alignof(max_align_t);
    char *start = *at;

    *at += (count * size + alignment - 1) / alignment * alignment;
    return start;
}

int body_new(struct body *ret_body, unsigned n_tensors, unsigned n_calls, struct body_pot *pot, struct error *e)
{
    const size_t slack = 4 * _Alignof(max_align_t);
    struct body b = {.n_tensors = n_tensors, .n_calls = n_calls, .search_steps = BODY_SEARCH_STEPS};
    char *at;

    b.bytes = (n_tensors + 1) * (sizeof(*b.tensors) + sizeof(*b.refs)) +
              n_calls * (sizeof(*b.calls) + sizeof(*b.steps)) + slack;
    at = calloc(1, b.bytes);

    if (!at)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %u ops", n_calls);
    b.memory = at;
    /* One more, without memory: null pointers. */
    b.tensors = carve(&at, n_tensors + 1, sizeof(*b.tensors));
    b.refs = carve(&at, n_tensors + 1, sizeof(*b.refs));
    b.calls = carve(&at, n_calls, sizeof(*b.calls));
    b.steps = carve(&at, n_calls, sizeof(*b.steps));
    b.pot = pot;
    pot->bytes += b.bytes;
    charge_count(&b.charge, pot->account, pot->quota, b.bytes);
    *ret_body = b;
    return 0;
}

void body_move(struct body *body, struct body_pot *pot)
{
    body->pot->bytes -= body->bytes;
    pot->bytes += body->bytes;
    body->pot = pot;
    charge_free(&body->charge);
    charge_count(&body->charge, pot->account, pot->quota, body->bytes);
}

void body_unuse(struct body *body)
{
    for (unsigned i = 0; i < body->n_tensors; i++) {
        struct operand_ref *ref = &body->refs[i];

        if (ref->waiting)
            mapping_stop_waiting(&ref->waiter);
        ref->waiting = false;
        ref->hold = hold_unref(ref->hold);
        if (ref->mapping)
            mapping_unuse(ref->mapping);
        ref->mapping = NULL;
    }
}

void body_release(struct body *body)
{
    body_unuse(body);
    for (unsigned i = 0; i < body->n_calls; i++)
        kernel_unref(body->calls[i].kernel);
    if (body->pot)
        body->pot->bytes -= body->bytes;
    charge_free(&body->charge);
    free(body->memory);
    *body = (struct body){0};
}
