#include "kernel_support.h"

#include <stdio.h>

unsigned char *read_file(const char *path, size_t *ret_size)
{
    FILE *f = fopen(path, "rb");
    unsigned char *bytes;
    long size;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    bytes = malloc((size_t)size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, f), size);
    fclose(f);
    *ret_size = (size_t)size;
    return bytes;
}

static void unload(void *code)
{
    backend->code_unload(device, code);
}

struct backend_code *load_code(void)
{
    struct backend_code *code;
    unsigned char *image;
    size_t size;

    image = read_file(KOPS_TEST_CUBIN, &size);
    MUST(backend->code_load(device, DOMAIN_COMMON, image, size, &code, &e));
    free(image); /* the driver has a copy */
    return opened(code, unload);
}

const struct backend_function *load_function(struct backend_code *code, const char *name)
{
    static struct backend_function functions[64];
    static unsigned n;

    assert_true(n < 64);
    MUST(backend->code_function(device, code, name, &functions[n], &e));
    return &functions[n++];
}

static unsigned count(const struct arg *args, unsigned n_args, unsigned kind)
{
    unsigned n = 0;

    for (unsigned i = 0; i < n_args; i++)
        n += args[i].kind == kind;
    return n;
}

void make_kernel_job(struct test_job *t, const struct backend_function *function, unsigned threads,
                     const struct arg *args, unsigned n_args)
{
    struct step *step = &t->step;
    unsigned inputs = count(args, n_args, ARG_IN), next[2] = {0, inputs};
    struct plan_kernel *k = &step->plan.kernel;
    uint16_t at = 0;

    *t = (struct test_job){.job = {.n_steps = 1, .repeat = 1, .timing = true, .done = job_done}};
    t->job.steps = step;
    t->job.samples = t->samples;
    *step = (struct step){.op = OP_COUNT,
                          .n_inputs = (uint8_t)inputs,
                          .n_outputs = (uint8_t)count(args, n_args, ARG_OUT),
                          .plan = {.kind = PLAN_KERNEL, .dtype = DTYPE_F32},
                          .in_place = -1};
    k->function = function->id;
    k->grid[0] = (threads + 255) / 256;
    k->grid[1] = k->grid[2] = 1;
    k->block[0] = 256;
    k->block[1] = k->block[2] = 1;
    for (unsigned i = 0; i < n_args; i++) {
        const struct arg *a = &args[i];
        uint16_t size = a->kind == ARG_INT ? 4 : 8;

        at = (uint16_t)((at + size - 1) / size * size);
        if (a->kind == ARG_INT) {
            memcpy(k->params + at, &a->number, size);
        } else {
            unsigned operand = next[a->kind]++;

            k->pointers[operand] = at;
            k->n_pointers++;
            k->sparse |= (uint16_t)(a->sparse << operand);
            step->operands[operand] =
                (struct step_operand){.memory = memory_id_of(a->memory), .offset = a->offset, .extent = a->bytes};
        }
        at = (uint16_t)(at + size);
    }
    k->param_bytes = at;
}
