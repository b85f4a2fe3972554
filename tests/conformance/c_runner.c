/* Runs ops and kernels through libkops as lines on stdin say: `kops_c_runner FD SIZE [here]`, FD being a sealed memfd
 * of SIZE bytes. With `here` kernels are launched in this process's context, on a copy of that memory.
 *
 *     run OP DTYPES OUT_DTYPE INPUTS OUTPUTS ATTRS DEVICE VARIANT    DEVICE and VARIANT may be "-"; DTYPES: see below
 *     tensor OFFSET RANK SHAPE… STRIDES…                   one a tensor, inputs first
 *     attr NAME bool|int|float|text VALUE                  one an attribute
 *
 * DTYPES is the dtype of all inputs, or one each, with commas between them.
 *
 *     kernel PATH ENTRY ARCH PARAMS GRID BLOCK             compiles a file; sizes are separated by ";", "-" is none
 *     param NAME in|out|inout|scalar DTYPE RANK ELEMENTS   one a parameter; RANK may be 0, ELEMENTS "-"
 *
 *     launch ARGS GRID BLOCK                               the last kernel that was made
 *     arg DTYPE                                            a tensor: its line follows
 *     arg null|int|float|bool VALUE
 *
 * After the last line of a request one line is written, its fields separated by tabs: `ok DEVICE VARIANT total_us
 * host_us gpu_us`, `ok KEY` for a kernel, or `error CODE KEY MESSAGE`, KEY being what the error names, or "-". The
 * first line is `ready`. Ends at end of file. */
#include <dlfcn.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kops/kops.h>

static kops_buffer *copy; /* device memory, with `here` */
static char *shared;      /* the memfd's bytes */
static double reached;    /* bytes: where the last of the request's tensors ends */

enum { WORD = 64, TEXT = 4096, MAX_ATTRS = 8, USAGE = 2 };
enum { GUARD = 4096 }; /* bytes behind the last tensor that a test may look at */

struct run {
    char op[WORD], device[WORD], variant[WORD];
    enum kops_dtype dtypes[KOPS_MAX_OPERANDS], out_dtype; /* dtypes: of the inputs */
    struct kops_tensor tensors[KOPS_MAX_OPERANDS];
    struct kops_attr attrs[MAX_ATTRS];
    char names[MAX_ATTRS][WORD], texts[MAX_ATTRS][WORD];
    unsigned n_inputs, n_outputs, n_attrs;
};

static void read_tensor(struct kops_tensor *tensor, kops_buffer *buffer, enum kops_dtype dtype)
{
    struct kops_tensor t = {.buffer = buffer, .dtype = dtype, .has_strides = true};
    double end;

    if (scanf(" tensor %ju %u", &t.offset, &t.rank) != 2 || t.rank > KOPS_MAX_RANK)
        errx(USAGE, "expected: tensor OFFSET RANK");
    for (unsigned i = 0; i < 2 * t.rank; i++)
        if (scanf("%jd", i < t.rank ? &t.shape[i] : &t.strides[i - t.rank]) != 1)
            errx(USAGE, "expected a shape and strides of %u dimensions", t.rank);
    end = (double)t.offset;
    for (unsigned i = 0; i < t.rank; i++)
        end += (double)t.shape[i] * (double)t.strides[i] * (double)kops_dtype_size(dtype);
    reached = end > reached ? end : reached;
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

/* "f32", or "f8_e4m3,f8_e5m2,f32,f32". */
static bool read_dtypes(struct run *r, char *words)
{
    enum kops_dtype dtype = KOPS_F32;

    for (unsigned i = 0; i < r->n_inputs; i++) {
        const char *word = strsep(&words, ",");

        if (word && !kops_dtype_parse(word, &dtype))
            return false;
        r->dtypes[i] = dtype;
    }
    return true;
}

static void read_run(struct run *r, kops_buffer *buffer)
{
    char dtype[WORD], out_dtype[WORD];
    int n = scanf(" %63s %63s %63s %u %u %u %63s %63s", r->op, dtype, out_dtype, &r->n_inputs, &r->n_outputs,
                  &r->n_attrs, r->device, r->variant);

    if (n != 8 || r->n_inputs > KOPS_MAX_OPERANDS || r->n_outputs > KOPS_MAX_OPERANDS - r->n_inputs ||
        r->n_attrs > MAX_ATTRS || !read_dtypes(r, dtype) || !kops_dtype_parse(out_dtype, &r->out_dtype))
        errx(USAGE, "expected: run OP DTYPES OUT_DTYPE INPUTS OUTPUTS ATTRS DEVICE VARIANT");
    for (unsigned i = 0; i < r->n_inputs + r->n_outputs; i++)
        read_tensor(&r->tensors[i], buffer, i < r->n_inputs ? r->dtypes[i] : r->out_dtype);
    for (unsigned i = 0; i < r->n_attrs; i++)
        read_attr(r, i);
}

static void answer_error(const struct kops_error *error)
{
    const char *key = kops_error_text(error, "key");

    printf("error\t%s\t%s\t", kops_code_name(error->code), key ? key : "-");
    for (const char *c = error->message; *c; c++)
        putchar(*c == '\n' || *c == '\t' ? ' ' : *c);
    printf("\n");
}

static void answer(enum kops_code code, const struct kops_result *result, const struct kops_error *error)
{
    if (code)
        answer_error(error);
    else
        printf("ok\t%s\t%s\t%g\t%g\t%g\n", result->device, result->variant, result->total_us, result->host_us,
               result->gpu_us);
    fflush(stdout);
}

static void check(enum kops_code code, const struct kops_error *error)
{
    if (code)
        errx(EXIT_FAILURE, "%s", error->message);
}

/* Bytes of the copy that the request may use. */
static size_t used(void)
{
    const size_t size = kops_buffer_size(copy);

    return reached + GUARD < (double)size ? (size_t)reached + GUARD : size;
}

/* In this process, on the copy, which is brought back also when the op was refused. */
static void run_here(kops_client *client, struct kops_request *request)
{
    const size_t size = used();
    struct kops_result result;
    struct kops_error error, other;
    enum kops_code code;

    check(kops_buffer_write(copy, 0, shared, size, &other), &other);
    request->options.where = KOPS_WHERE_HERE;
    request->options.device = NULL; /* the context's */
    code = kops_run(client, request, &result, &error);
    check(kops_buffer_read(copy, 0, shared, size, &other), &other);
    answer(code, &result, &error);
}

static void do_run(kops_client *client, const struct run *r)
{
    struct kops_error error;
    struct kops_result result;
    struct kops_request request = {
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

    if (copy)
        run_here(client, &request);
    else
        answer(kops_run(client, &request, &result, &error), &result, &error);
}

/* ---- kernels ---- */

/* What a kernel's line and its parameters' say. */
struct declaration {
    char path[TEXT], entry[WORD], arch[WORD], grid[TEXT], block[TEXT];
    struct kops_param params[KOPS_MAX_PARAMS];
    char names[KOPS_MAX_PARAMS][WORD], elements[KOPS_MAX_PARAMS][TEXT];
    unsigned n_params;
};

/* "a;b;c", or "-" for none. */
static void split_sizes(char *text, const char **ret_sizes)
{
    char *next = strcmp(text, "-") != 0 ? text : NULL;

    for (unsigned i = 0; i < 3; i++)
        ret_sizes[i] = next ? strsep(&next, ";") : NULL;
}

static void read_param(struct declaration *d, unsigned i)
{
    static const char *const kinds[] = {"", "in", "out", "inout", "scalar"};
    struct kops_param *p = &d->params[i];
    char kind[WORD], dtype[WORD];

    if (scanf(" param %63s %63s %63s %u %4095s", d->names[i], kind, dtype, &p->rank, d->elements[i]) != 5 ||
        !kops_dtype_parse(dtype, &p->dtype))
        errx(USAGE, "expected: param NAME KIND DTYPE RANK ELEMENTS");
    p->name = d->names[i];
    for (p->kind = KOPS_PARAM_IN; p->kind < KOPS_PARAM_SCALAR && strcmp(kinds[p->kind], kind) != 0;)
        p->kind++;
    p->elements = strcmp(d->elements[i], "-") != 0 ? d->elements[i] : NULL;
}

static void read_declaration(struct declaration *d)
{
    *d = (struct declaration){.n_params = 0};
    if (scanf(" %4095s %63s %63s %u %4095s %4095s", d->path, d->entry, d->arch, &d->n_params, d->grid, d->block) != 6 ||
        d->n_params > KOPS_MAX_PARAMS)
        errx(USAGE, "expected: kernel PATH ENTRY ARCH PARAMS GRID BLOCK");
    for (unsigned i = 0; i < d->n_params; i++)
        read_param(d, i);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t room = 0;

    if (!file || getdelim(&text, &room, 0, file) < 0)
        err(USAGE, "%s", path);
    fclose(file);
    return text;
}

/* Replaces *kernel. */
static void do_kernel(kops_client *client, struct declaration *d, kops_kernel **kernel)
{
    char *text = read_file(d->path);
    const struct kops_source source = {.text = text, .arch = strcmp(d->arch, "-") != 0 ? d->arch : NULL};
    struct kops_signature signature = {.entry = d->entry, .params = d->params, .n_params = d->n_params};
    struct kops_error error;

    *kernel = kops_kernel_free(*kernel);
    split_sizes(d->grid, signature.geometry.grid);
    split_sizes(d->block, signature.geometry.block);
    if (kops_kernel_compile(client, &source, &signature, kernel, NULL, &error))
        answer_error(&error);
    else
        printf("ok\t%s\n", kops_module_info(kops_kernel_module(*kernel))->key);
    fflush(stdout);
    free(text);
}

struct arguments {
    struct kops_argument args[KOPS_MAX_PARAMS];
    struct kops_tensor tensors[KOPS_MAX_PARAMS];
    unsigned n_args;
    struct kops_launch_options how;
};

static void read_argument(struct arguments *a, unsigned i, kops_buffer *buffer)
{
    char kind[WORD], value[WORD];
    enum kops_dtype dtype;

    if (scanf(" arg %63s", kind) != 1)
        errx(USAGE, "expected: arg KIND");
    if (strcmp(kind, "int") != 0 && strcmp(kind, "float") != 0 && strcmp(kind, "bool") != 0 &&
        kops_dtype_parse(kind, &dtype)) { /* which knows the types of C, too */
        read_tensor(&a->tensors[i], buffer, dtype);
        a->args[i] = kops_arg_tensor(&a->tensors[i]);
        return;
    }
    if (scanf(" %63s", value) != 1)
        errx(USAGE, "expected: arg KIND VALUE");
    if (!strcmp(kind, "int"))
        a->args[i] = kops_arg_int(strtoll(value, NULL, 10));
    else if (!strcmp(kind, "float"))
        a->args[i] = kops_arg_float(strtod(value, NULL));
    else if (!strcmp(kind, "bool"))
        a->args[i] = kops_arg_bool(!strcmp(value, "1"));
    else
        a->args[i] = kops_arg_null();
}

static void read_dims(char *text, struct kops_dims *ret)
{
    const char *sizes[3];

    split_sizes(text, sizes);
    for (ret->n = 0; ret->n < 3 && sizes[ret->n]; ret->n++)
        ret->size[ret->n] = strtoll(sizes[ret->n], NULL, 10);
}

/* The launch in this process, on the copy, which is brought back also when it was refused. */
static void launch_here(kops_kernel *kernel, struct arguments *a)
{
    const size_t size = used();
    struct kops_result result;
    struct kops_error error, other;
    enum kops_code code;

    check(kops_buffer_write(copy, 0, shared, size, &other), &other);
    a->how.options.where = KOPS_WHERE_HERE;
    code = kops_kernel_launch(kernel, a->args, a->n_args, &a->how, &result, &error);
    check(kops_buffer_read(copy, 0, shared, size, &other), &other);
    answer(code, &result, &error);
}

static void do_launch(kops_kernel *kernel, kops_buffer *buffer)
{
    struct arguments a = {.n_args = 0};
    char grid[TEXT], block[TEXT];
    struct kops_result result;
    struct kops_error error;

    if (scanf(" %u %4095s %4095s", &a.n_args, grid, block) != 3 || a.n_args > KOPS_MAX_PARAMS || !kernel)
        errx(USAGE, "expected: launch ARGS GRID BLOCK, after a kernel");
    read_dims(grid, &a.how.geometry.grid);
    read_dims(block, &a.how.geometry.block);
    for (unsigned i = 0; i < a.n_args; i++)
        read_argument(&a, i, copy ? copy : buffer);
    if (copy)
        launch_here(kernel, &a);
    else
        answer(kops_kernel_launch(kernel, a.args, a.n_args, &a.how, &result, &error), &result, &error);
}

static void serve(kops_client *client, kops_buffer *buffer)
{
    struct declaration declaration;
    kops_kernel *kernel = NULL;
    char word[WORD];
    struct run r;

    while (scanf(" %63s", word) == 1) {
        reached = 0;
        if (!strcmp(word, "run")) {
            read_run(&r, copy ? copy : buffer);
            do_run(client, &r);
        } else if (!strcmp(word, "kernel")) {
            read_declaration(&declaration);
            do_kernel(client, &declaration, &kernel);
        } else if (!strcmp(word, "launch")) {
            do_launch(kernel, buffer);
        } else {
            errx(USAGE, "no request `%s`", word);
        }
    }
    kops_kernel_free(kernel);
}

/* Makes the first GPU's context current, as a program that uses CUDA does. */
static void use_cuda(void)
{
    const char *named = getenv("KOPS_CUDA_DRIVER");
    void *library = dlopen(named ? named : "libcuda.so.1", RTLD_NOW), *context;
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);

    if (!library)
        errx(EXIT_FAILURE, "%s", dlerror());
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(library, "cuCtxSetCurrent");
    if (!init || !retain || !set || init(0) || retain(&context, 0) || set(context))
        errx(EXIT_FAILURE, "no CUDA context");
}

static void prepare_here(kops_client *client, int fd, size_t size)
{
    struct kops_error error;

    use_cuda();
    shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        err(EXIT_FAILURE, "mmap");
    check(kops_buffer_alloc(client, size, NULL, &copy, &error), &error);
}

int main(int argc, char **argv)
{
    struct kops_error error;
    kops_client *client;
    kops_buffer *buffer;

    if (argc != 3 && argc != 4)
        errx(USAGE, "usage: kops_c_runner FD SIZE [here]");
    if (kops_connect(NULL, &client, &error))
        errx(EXIT_FAILURE, "connect: %s", error.message);
    if (kops_buffer_register_memfd(client, (int)strtol(argv[1], NULL, 10), strtoul(argv[2], NULL, 10), KOPS_ACCESS_RW,
                                   &buffer, &error))
        errx(EXIT_FAILURE, "register: %s", error.message);
    if (argc == 4)
        prepare_here(client, (int)strtol(argv[1], NULL, 10), strtoul(argv[2], NULL, 10));
    printf("ready\n");
    fflush(stdout);
    serve(client, buffer);
    kops_buffer_release(copy);
    kops_buffer_release(buffer);
    kops_close(client);
    return 0;
}
