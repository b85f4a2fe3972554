#include "work.h"

#include <stdio.h>
#include <string.h>

#include "options.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void vector_add(float *c, const float *a, const float *b, int n)\n"
    "{\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "\n"
    "    if (i < n)\n"
    "        c[i] = a[i] + b[i];\n"
    "}\n";

static int compile(struct work *work, size_t size)
{
    static const struct kops_param params[] = {
        {.name = "c", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .elements = "n"},
        {.name = "a", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
        {.name = "b", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32},
    };
    const struct kops_source source = {.text = SOURCE};
    const struct kops_signature signature = {.entry = "vector_add",
                                             .params = params,
                                             .n_params = sizeof(params) / sizeof(params[0]),
                                             .geometry = {.grid = {"ceil_div(n, 256)"}, .block = {"256"}}};
    const struct kops_tensor *t = work->operands.tensors;
    struct kops_error error;
    enum kops_code code = kops_kernel_compile(work->client, &source, &signature, &work->kernel, NULL, &error);

    if (code == KOPS_ERR_UNSUPPORTED || code == KOPS_ERR_PERMISSION_DENIED) {
        fprintf(stderr, "%s\n", error.message);
        return EXIT_SKIPPED;
    }
    work->args[0] = kops_arg_tensor(&t[2]);
    work->args[1] = kops_arg_tensor(&t[0]);
    work->args[2] = kops_arg_tensor(&t[1]);
    work->args[3] = kops_arg_int((int64_t)size);
    return check_kops(code, &error, "compile") ? 1 : 0;
}

int work_make(struct work *work, kops_client *client, const char *name, size_t size, const char *dtype)
{
    const bool is_kernel = strcmp(name, "kernel") == 0, is_gemm = strcmp(name, "gemm") == 0;
    const enum kops_dtype type = dtype && strcmp(dtype, "bf16") == 0 ? KOPS_BF16 : KOPS_F32;
    const int64_t shape[] = {(int64_t)size, (int64_t)size};
    int r;

    *work = (struct work){.client = client};
    if (!is_kernel && !is_gemm && strcmp(name, "add") != 0) {
        fprintf(stderr, "bench: --work is add, gemm or kernel, not %s\n", name);
        return 2;
    }
    if (operands_make(&work->operands, client, is_gemm ? "gemm" : "add", type, is_gemm ? 2 : 1, shape))
        return 1;
    r = is_kernel ? compile(work, size) : 0;
    if (r)
        operands_release(&work->operands);
    return r;
}

void work_release(struct work *work)
{
    work->kernel = kops_kernel_free(work->kernel);
    operands_release(&work->operands);
}

int work_run(struct work *work, const struct kops_options *options, struct kops_result *ret_result)
{
    const struct kops_launch_options how = {.options = *options};
    struct kops_request *request = &work->operands.request;
    struct kops_error error;
    enum kops_code code;

    if (work->kernel) {
        code = kops_kernel_launch(work->kernel, work->args, 4, &how, ret_result, &error);
    } else {
        request->options = *options;
        code = kops_run(work->client, request, ret_result, &error);
    }
    return check_kops(code, &error, "run");
}

int work_submit(struct work *work, const struct kops_options *options, kops_ticket *ret_ticket)
{
    const struct kops_launch_options how = {.options = *options};
    struct kops_request *request = &work->operands.request;
    struct kops_error error;
    enum kops_code code;

    if (work->kernel) {
        code = kops_kernel_submit(work->kernel, work->args, 4, &how, ret_ticket, &error);
    } else {
        request->options = *options;
        code = kops_submit(work->client, request, ret_ticket, &error);
    }
    return check_kops(code, &error, "submit");
}
