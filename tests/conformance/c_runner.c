/* Runs ops through libkops as lines on stdin say: `kops_c_runner FD SIZE`, FD being a sealed memfd of SIZE bytes.
 *
 *     run OP DTYPE INPUTS OUTPUTS ATTRS DEVICE VARIANT     DEVICE and VARIANT may be "-"
 *     tensor OFFSET RANK SHAPE… STRIDES…                   one a tensor, inputs first
 *     attr NAME bool|int|float|text VALUE                  one an attribute
 *
 * After the last line of a run one line is written, its fields separated by tabs: `ok DEVICE VARIANT total_us host_us
 * gpu_us` or `error CODE MESSAGE`. The first line is `ready`. Ends at end of file. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

enum { WORD = 64, MAX_ATTRS = 8, USAGE = 2 };

struct run {
    char op[WORD], device[WORD], variant[WORD];
    enum kops_dtype dtype;
    struct kops_tensor tensors[KOPS_MAX_OPERANDS];
    struct kops_attr attrs[MAX_ATTRS];
    char names[MAX_ATTRS][WORD], texts[MAX_ATTRS][WORD];
    unsigned n_inputs, n_outputs, n_attrs;
};

static void read_tensor(struct kops_tensor *tensor, kops_buffer *buffer, enum kops_dtype dtype)
{
    struct kops_tensor t = {.buffer = buffer, .dtype = dtype, .has_strides = true};

    if (scanf(" tensor %ju %u", &t.offset, &t.rank) != 2 || t.rank > KOPS_MAX_RANK)
        errx(USAGE, "expected: tensor OFFSET RANK");
    for (unsigned i = 0; i < 2 * t.rank; i++)
        if (scanf("%jd", i < t.rank ? &t.shape[i] : &t.strides[i - t.rank]) != 1)
            errx(USAGE, "expected a shape and strides of %u dimensions", t.rank);
    *tensor = t;
}

static void read_attr(struct run *r, unsigned i)
{
    char kind[WORD];
    double value = 0;

    if (scanf(" attr %63s %63s %63s", r->names[i], kind, r->texts[i]) != 3)
        errx(USAGE, "expected: attr NAME KIND VALUE");
    value = strtod(r->texts[i], NULL);
    if (!strcmp(kind, "bool"))
        r->attrs[i] = kops_attr_bool(r->names[i], value != 0);
    else if (!strcmp(kind, "int"))
        r->attrs[i] = kops_attr_int(r->names[i], (int64_t)value);
    else if (!strcmp(kind, "float"))
        r->attrs[i] = kops_attr_float(r->names[i], value);
    else
        r->attrs[i] = kops_attr_text(r->names[i], r->texts[i]);
}

/* false: end of file. */
static bool read_run(struct run *r, kops_buffer *buffer)
{
    char dtype[WORD];
    int n = scanf(" run %63s %63s %u %u %u %63s %63s", r->op, dtype, &r->n_inputs, &r->n_outputs, &r->n_attrs,
                  r->device, r->variant);

    if (n == EOF)
        return false;
    if (n != 7 || r->n_inputs > KOPS_MAX_OPERANDS || r->n_outputs > KOPS_MAX_OPERANDS - r->n_inputs ||
        r->n_attrs > MAX_ATTRS || !kops_dtype_parse(dtype, &r->dtype))
        errx(USAGE, "expected: run OP DTYPE INPUTS OUTPUTS ATTRS DEVICE VARIANT");
    for (unsigned i = 0; i < r->n_inputs + r->n_outputs; i++)
        read_tensor(&r->tensors[i], buffer, r->dtype);
    for (unsigned i = 0; i < r->n_attrs; i++)
        read_attr(r, i);
    return true;
}

static void do_run(kops_client *client, const struct run *r)
{
    struct kops_error error;
    struct kops_result result;
    const struct kops_request request = {
        .op = r->op,
        .inputs = r->tensors,
        .n_inputs = r->n_inputs,
        .outputs = r->tensors + r->n_inputs,
        .n_outputs = r->n_outputs,
        .attrs = r->attrs,
        .n_attrs = r->n_attrs,
        .options = {.device = strcmp(r->device, "-") != 0 ? r->device : NULL,
                    .variant = strcmp(r->variant, "-") != 0 ? r->variant : NULL},
    };

    if (kops_run(client, &request, &result, &error))
        printf("error\t%s\t%s\n", kops_code_name(error.code), error.message);
    else
        printf("ok\t%s\t%s\t%g\t%g\t%g\n", result.device, result.variant, result.total_us, result.host_us,
               result.gpu_us);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct kops_error error;
    kops_client *client;
    kops_buffer *buffer;
    struct run r;

    if (argc != 3)
        errx(USAGE, "usage: kops_c_runner FD SIZE");
    if (kops_connect(NULL, &client, &error))
        errx(EXIT_FAILURE, "connect: %s", error.message);
    if (kops_buffer_register_memfd(client, (int)strtol(argv[1], NULL, 10), strtoul(argv[2], NULL, 10), KOPS_ACCESS_RW,
                                   &buffer, &error))
        errx(EXIT_FAILURE, "register: %s", error.message);
    printf("ready\n");
    fflush(stdout);
    while (read_run(&r, buffer))
        do_run(client, &r);
    kops_buffer_release(buffer);
    kops_close(client);
    return 0;
}
