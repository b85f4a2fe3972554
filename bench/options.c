#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"

static void usage(const char *program, const struct bench_option *options)
{
    fprintf(stderr, "usage: %s", program);
    for (; options->name; options++)
        fprintf(stderr, " [--%s%s]", options->name, options->flag ? "" : options->count ? " N" : " TEXT");
    fprintf(stderr, "\n");
    exit(2);
}

static const struct bench_option *find(const struct bench_option *options, const char *argument)
{
    if (strncmp(argument, "--", 2) != 0)
        return NULL;
    for (; options->name; options++) {
        if (strcmp(options->name, argument + 2) == 0)
            return options;
    }
    return NULL;
}

void options_read(int argc, char **argv, const struct bench_option *options)
{
    for (int i = 1; i < argc; i++) {
        const struct bench_option *option = find(options, argv[i]);

        if (!option || (!option->flag && i + 1 == argc))
            usage(argv[0], options);
        if (option->flag)
            *option->flag = true;
        else if (option->count)
            *option->count = parse_count(argv[i], argv[i + 1]);
        else
            *option->text = argv[i + 1];
        i += option->flag ? 0 : 1;
    }
}

kops_client *connect_or_exit(const struct bench_connection *how)
{
    struct kops_connect_options options = {.socket = how->socket};
    bool shm = how->transport && strcmp(how->transport, "shm") == 0;
    struct kops_error error;
    kops_client *client;

    if (how->spin && strcmp(how->spin, "none") == 0)
        options.spin_us = KOPS_NO_SPIN;
    else if (how->spin && strcmp(how->spin, "auto") != 0)
        options.spin_us = (unsigned)parse_count("--spin", how->spin);
    if (shm)
        options.transport = KOPS_TRANSPORT_SHM;
    else if (how->transport && strcmp(how->transport, "socket") == 0)
        options.transport = KOPS_TRANSPORT_SOCKET;
    if (kops_connect(&options, &client, &error)) {
        fprintf(stderr, "%s\n", error.message);
        exit(shm && error.code == KOPS_ERR_UNSUPPORTED ? EXIT_SKIPPED : 1);
    }
    if (shm)
        need_feature(client, "shm");
    return client;
}

void need_feature(const kops_client *client, const char *feature)
{
    if (kops_info_feature(client, feature))
        return;
    fprintf(stderr, "the daemon has no feature %s\n", feature);
    exit(EXIT_SKIPPED);
}

int check_kops(enum kops_code code, const struct kops_error *error, const char *what)
{
    if (!code)
        return 0;
    fprintf(stderr, "bench: %s: %s\n", what, error->message);
    return -1;
}

int user_add_compile(kops_client *client, kops_kernel **ret_kernel)
{
    static const char text[] =
        "extern \"C\" __global__ void vector_add(float *c, const float *a, const float *b, int n)\n"
        "{\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n) c[i] = a[i] + b[i];\n"
        "}\n";
    static const struct kops_param params[] = {
        {.name = "c", .kind = KOPS_PARAM_OUT, .dtype = KOPS_F32, .elements = "n"},
        {.name = "a", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
        {.name = "b", .kind = KOPS_PARAM_IN, .dtype = KOPS_F32, .elements = "n"},
        {.name = "n", .kind = KOPS_PARAM_SCALAR, .dtype = KOPS_I32},
    };
    const struct kops_source source = {.text = text};
    const struct kops_signature signature = {.entry = "vector_add",
                                             .params = params,
                                             .n_params = sizeof(params) / sizeof(params[0]),
                                             .geometry = {.grid = {"ceil_div(n, 256)"}, .block = {"256"}}};
    struct kops_error error;
    enum kops_code code = kops_kernel_compile(client, &source, &signature, ret_kernel, NULL, &error);

    if (code == KOPS_ERR_UNSUPPORTED || code == KOPS_ERR_PERMISSION_DENIED) {
        fprintf(stderr, "%s\n", error.message);
        return EXIT_SKIPPED;
    }
    return check_kops(code, &error, "compile") ? 1 : 0;
}
