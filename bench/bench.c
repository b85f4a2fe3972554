#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- options ---- */

static void usage(const char *program, const struct bench_option *options)
{
    fprintf(stderr, "usage: %s", program);
    for (; options->name; options++)
        fprintf(stderr, " [--%s%s]", options->name, options->flag ? "" : options->count ? " N" : " TEXT");
    fprintf(stderr, "\n");
    exit(2);
}

void options_read(int argc, char **argv, const struct bench_option *options)
{
    for (int i = 1; i < argc; i++) {
        const struct bench_option *option = options;

        while (option->name && (strncmp(argv[i], "--", 2) != 0 || strcmp(option->name, argv[i] + 2) != 0))
            option++;
        if (!option->name || (!option->flag && i + 1 == argc))
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

size_t parse_count(const char *option, const char *text)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || *end || end == text || !value || value > 100000000) {
        fprintf(stderr, "bench: %s: \"%s\" is no number from 1 to 100000000\n", option, text);
        exit(2);
    }
    return (size_t)value;
}

/* ---- the daemon ---- */

kops_client *connect_or_exit(const char *socket, const char *transport, const char *spin)
{
    struct kops_connect_options options = {.socket = socket};
    bool shm = transport && strcmp(transport, "shm") == 0;
    struct kops_error error;
    kops_client *client;

    if (spin && strcmp(spin, "none") == 0)
        options.spin_us = KOPS_NO_SPIN;
    else if (spin && strcmp(spin, "auto") != 0)
        options.spin_us = (unsigned)parse_count("--spin", spin);
    if (shm)
        options.transport = KOPS_TRANSPORT_SHM;
    else if (transport && strcmp(transport, "socket") == 0)
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

/* ---- samples ---- */

uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

void series_init(struct series *series, const char *name, size_t capacity)
{
    *series = (struct series){.name = name, .capacity = capacity};
    series->samples = calloc(capacity, sizeof(*series->samples));
    if (!series->samples) {
        fprintf(stderr, "bench: no memory for %zu samples\n", capacity);
        exit(1);
    }
}

void series_deinit(struct series *series)
{
    free(series->samples);
    series->samples = NULL;
}

void series_add_us(struct series *series, double microseconds)
{
    if (series->n < series->capacity)
        series->samples[series->n++] = microseconds;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(const struct series *series, double q)
{
    return series->n ? series->samples[(size_t)(q * (double)(series->n - 1) + 0.5)] : 0;
}

void series_print(struct series *all, size_t n_all)
{
    for (size_t i = 0; i < n_all; i++) {
        qsort(all[i].samples, all[i].n, sizeof(*all[i].samples), compare);
        printf("%s\"%s\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f, \"n\": %zu}", i ? ", " : "{", all[i].name,
               quantile(&all[i], 0.5), quantile(&all[i], 0.99), quantile(&all[i], 1), all[i].n);
    }
    printf("}\n");
}

enum { SIDES_MAX = 8, LEAST_BLOCKS = 4, SECONDS = 25 };

static int run_block(const struct side *side, void *bench, size_t calls, size_t per, struct series *series)
{
    for (size_t i = 0; i < calls; i++) {
        uint64_t start = now_ns();

        if (side->call(bench, side->how))
            return -1;
        if (series)
            series_add_us(series, (double)(now_ns() - start) * 1e-3 / (double)per);
    }
    return 0;
}

int sides_measure(const struct side *sides, size_t n, void *bench, const struct turns *turns)
{
    struct series series[SIDES_MAX];
    uint64_t until = now_ns() + SECONDS * UINT64_C(1000000000);
    int r = 1;

    for (size_t i = 0; i < n; i++)
        series_init(&series[i], sides[i].name, turns->blocks * turns->calls);
    for (size_t block = 0; block < turns->blocks && (block < LEAST_BLOCKS || now_ns() < until); block++) {
        for (size_t i = 0; i < n; i++) {
            if (run_block(&sides[i], bench, block ? turns->again : turns->warmup, 1, NULL) ||
                run_block(&sides[i], bench, turns->calls, turns->per, &series[i]))
                goto free_series;
        }
    }
    series_print(series, n);
    r = 0;

free_series:
    for (size_t i = 0; i < n; i++)
        series_deinit(&series[i]);
    return r;
}
