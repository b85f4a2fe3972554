/* cuda_lab: checks every kernel on this machine's first GPU, then times them.
 *
 *     cuda_lab [--seconds N] [--seed S] [--check-only | --time-only] [--no-gemm]
 *
 * --seconds: for random cases in all (default 25). Exits with 1 where a result was wrong. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "timing.h"
#include "util/clock.h"

enum { ELEMENTWISE_SCALE = 300, GEMM_SCALE = 200 };

struct options {
    double seconds;
    uint64_t seed;
    bool check, time, gemm;
};

/* Those of each op that it takes. */
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16,    DTYPE_I8,
                                    DTYPE_U16, DTYPE_I32, DTYPE_U64, DTYPE_F8_E4M3, DTYPE_F8_E5M2};

enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]), GROUPS = OP_COUNT * DTYPES + 1 };

struct tally {
    char name[32];
    unsigned cases, launches, wrong;
};

/* Group g: an op and a dtype, the last one the strided copies of staging. Returns the launches compared, 0 where the
 * op does not take the dtype, -1 where wrong. */
static int run_case(unsigned g, struct lab_random *r, const struct lab_machine *m, char *text)
{
    const enum dtype dtype = dtypes[g % DTYPES];
    const enum op_id op = (enum op_id)(g / DTYPES);
    struct lab_case c;
    int ways;

    if (g == GROUPS - 1)
        return case_check_copy(r, m, dtypes[lab_random(r) % (DTYPES - 2)], ELEMENTWISE_SCALE, text);
    if (!(op_get(op)->dtypes & DTYPE_BIT(dtype)) ||
        (op == OP_COPY && (dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2)))
        return 0; /* copies of bytes are those of i8 */
    if (op_get(op)->rule == op_rule_elementwise) {
        case_elementwise(&c, r, op, dtype, ELEMENTWISE_SCALE);
        ways = case_check_elementwise(&c, m);
    } else {
        case_gemm(&c, r, dtype, GEMM_SCALE);
        ways = case_check_gemm(&c, m);
    }
    memcpy(text, c.text, CASE_TEXT_MAX);
    case_free(&c);
    return ways;
}

static unsigned check_random(struct lab_gpu *gpu, const struct options *o, struct tally *tallies)
{
    const uint64_t share = (uint64_t)(o->seconds * 1e9 / GROUPS);
    struct lab_random r = {o->seed};
    unsigned wrong = 0;

    for (unsigned g = 0; g < GROUPS; g++) {
        struct tally *t = &tallies[g];
        const uint64_t start = clock_now_ns();

        snprintf(t->name, sizeof(t->name), "%s %s", g < GROUPS - 1 ? op_get((enum op_id)(g / DTYPES))->name : "staged",
                 g < GROUPS - 1 ? dtype_name(dtypes[g % DTYPES]) : "copy");
        while (clock_now_ns() - start < share && t->wrong < 3) {
            char text[CASE_TEXT_MAX];
            const int ways = run_case(g, &r, lab_gpu_machine(gpu), text);

            if (ways == 0)
                break;
            t->cases++;
            if (ways > 0) {
                t->launches += (unsigned)ways;
            } else {
                t->wrong++;
                fprintf(stderr, "WRONG %s: %s\n", t->name, text);
            }
        }
        wrong += t->wrong;
        fprintf(stderr, "%s: %u cases\n", t->name, t->cases);
    }
    return wrong;
}

/* Random elements, finite in every dtype and not constant: the power that arithmetic takes depends on the data. */
static int fill_random(const struct lab_machine *m, uint64_t address, struct lab_random *r)
{
    const size_t piece = (size_t)64 << 20;
    uint16_t *values = malloc(piece);
    int result = values ? 0 : -1;

    for (size_t i = 0; values && i < piece / 2; i++) {
        const uint64_t x = lab_random(r);

        values[i] = (uint16_t)((x & 0x83ff) | 0x3c00);
    }
    for (size_t done = 0; result == 0 && done < BUFFER_BYTES; done += piece)
        result = m->write(m->context, address + done, values, piece);
    free(values);
    return result;
}

static int run_timings(struct lab_gpu *gpu, bool gemm)
{
    struct lab_random r = {1};
    const struct lab_machine *m = lab_gpu_machine(gpu);
    uint64_t buffers[3] = {0};
    int result = -1;

    for (unsigned i = 0; i < 3; i++) {
        buffers[i] = m->alloc(m->context, BUFFER_BYTES + 64);
        if (!buffers[i] || fill_random(m, buffers[i], &r) < 0)
            goto free_buffers;
    }
    if (time_elementwise(gpu, buffers) < 0 || time_strided(gpu, buffers) < 0 || (gemm && time_gemm(gpu, buffers) < 0))
        goto free_buffers;
    result = 0;
free_buffers:
    for (unsigned i = 0; i < 3; i++) {
        if (buffers[i])
            m->free(m->context, buffers[i], BUFFER_BYTES);
    }
    return result;
}

static int parse(int argc, char **argv, struct options *ret_options)
{
    static const struct option known[] = {
        {"seconds", required_argument, NULL, 's'}, {"seed", required_argument, NULL, 'r'},
        {"check-only", no_argument, NULL, 'c'},    {"time-only", no_argument, NULL, 't'},
        {"no-gemm", no_argument, NULL, 'g'},       {NULL, 0, NULL, 0}};
    struct options o = {.seconds = 25, .seed = 1, .check = true, .time = true, .gemm = true};
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 's')
            o.seconds = strtod(optarg, NULL);
        else if (option == 'r')
            o.seed = strtoull(optarg, NULL, 0);
        else if (option == 'c')
            o.time = false;
        else if (option == 't')
            o.check = false;
        else if (option == 'g')
            o.gemm = false;
        else
            return -1;
    }
    *ret_options = o;
    return 0;
}

int main(int argc, char **argv)
{
    static struct tally tallies[GROUPS];
    struct options o;
    struct lab_gpu *gpu;
    unsigned wrong = 0;
    bool timed = true;

    if (parse(argc, argv, &o) < 0)
        return 2;
    gpu = lab_gpu_open();
    if (!gpu)
        return 2;
    printf("%s, %u multiprocessors\n", lab_gpu_name(gpu), lab_gpu_machine(gpu)->device.multiprocessors);
    if (o.check) {
        wrong = check_random(gpu, &o, tallies);
        if (check_large(gpu) < 0)
            wrong++;
    }
    if (o.time)
        timed = run_timings(gpu, o.gemm) == 0;
    if (o.check) {
        printf("\n== results against the reference (seed %llu)\n", (unsigned long long)o.seed);
        for (unsigned g = 0; g < GROUPS; g++)
            if (tallies[g].cases)
                printf("%-16s %6u cases %7u launches %s\n", tallies[g].name, tallies[g].cases, tallies[g].launches,
                       tallies[g].wrong ? "WRONG" : "right");
        printf("%s\n", wrong ? "SOME RESULTS WERE WRONG" : "all results right, also beyond 2^31 elements");
    }
    lab_gpu_close(gpu);
    return wrong || !timed;
}
