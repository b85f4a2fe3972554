#include "compile/helper_compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/cubin.h"
#include "compile/helper_attempt.h"
#include "compile/include_tree.h"

enum { MAX_ROUNDS = 8 /* of giving up host code: each finds what the one before could not reach */ };

static int fail(struct helper_outcome *o, enum error_code code, enum failure_reason reason, const char *message)
{
    o->failure = (struct frame_failure){.code = code, .reason = reason};
    snprintf(o->failure.message, sizeof(o->failure.message), "%s", message);
    return -1;
}

static int no_memory(struct helper_outcome *o)
{
    return fail(o, ERROR_COMPILE_FAILED, FAILURE_MEMORY, "the compiler ran out of memory (kernels.memory_mib)");
}

static void steal_log(struct attempt *a, struct helper_outcome *o)
{
    o->log = a->log;
    o->log_length = a->log_length;
    a->log = NULL;
}

/* The log's first line that is about an error, or its first. */
static void first_error(const char *log, char *into, size_t size)
{
    const char *at = log ? strstr(log, "error") : NULL, *line = at ? at : log ? log : "";
    int n;

    while (line > log && line[-1] != '\n')
        line--;
    n = (int)strcspn(line, "\n");
    if ((size_t)n >= size)
        n = (int)size - 1;
    snprintf(into, size, "%.*s", n, line);
    text_clean(into, strlen(into)); /* it may end within a character */
}

/* "…; it has plain, scale(float*)": the names to choose from. */
static void list_kernels(const struct attempt *a, char *into, size_t size)
{
    struct cubin cubin;
    struct error e;
    const char *symbol, *separator = "; it has ";
    uint32_t at = 0;
    size_t n = 0;

    if (cubin_open(&cubin, a->image, a->image_size, &e) < 0)
        return;
    while ((symbol = cubin_next_kernel(&cubin, &at)) && n + 1 < size) {
        char *readable = nvrtc_demangle(symbol);

        n += (size_t)snprintf(into + n, size - n, "%s%s", separator, readable ? readable : symbol);
        separator = ", ";
        free(readable);
    }
    if (!at || separator[0] == ';')
        snprintf(into, size, "; it has no kernel but templates, if any");
}

static void entry_failure(const struct attempt *a, const char *entry, struct helper_outcome *o)
{
    char kernels[140] = "", message[ERROR_MESSAGE_MAX];

    list_kernels(a, kernels, sizeof(kernels));
    snprintf(message, sizeof(message), "the source has no kernel \"%.80s\"%s", entry, kernels);
    text_clean(message, strlen(message));
    fail(o, ERROR_COMPILE_FAILED, FAILURE_ENTRY, message);
}

/* The first entry that the log complains of. */
static const char *guilty_entry(const struct compile_input *input, const char *log)
{
    for (unsigned i = 0; i < input->n_entries; i++) {
        const char *at = log;
        size_t n = strlen(input->entries[i]);

        while ((at = strstr(at, "#pragma nv_mangled_name "))) {
            at += strlen("#pragma nv_mangled_name ");
            if (!strncmp(at, input->entries[i], n) && (at[n] == '\n' || !at[n]))
                return input->entries[i];
        }
    }
    return input->entries[0];
}

static bool misses_entry(const struct attempt *a)
{
    return a->result == NVRTC_COMPILATION && a->log && strstr(a->log, "__nv_name_map(");
}

/* A source that compiles when no entries are asked for is not at fault: the entries are. */
static void compile_failure(const struct helper_toolkit *toolkit, const struct compile_input *input, struct attempt *a,
                            struct helper_outcome *o)
{
    char message[ERROR_MESSAGE_MAX];
    struct attempt plain;

    if (a->result == NVRTC_OUT_OF_MEMORY || (a->log && strstr(a->log, " error: out of memory\n"))) {
        no_memory(o);
        steal_log(a, o);
        return;
    }
    if (a->result == NVRTC_NO_BINARY) {
        snprintf(message, sizeof(message), "the compiler makes no binary for \"%.16s\" with these options",
                 input->arch);
        fail(o, ERROR_INVALID_ARGUMENT, FAILURE_SOURCE, message);
        return;
    }
    first_error(a->log, message, sizeof(message));
    fail(o, a->result == NVRTC_INVALID_OPTION ? ERROR_INVALID_ARGUMENT : ERROR_COMPILE_FAILED, FAILURE_SOURCE,
         *message ? message : "the compiler failed without a word");
    if (misses_entry(a)) {
        attempt_run(&plain, toolkit, input, false);
        if (plain.result == NVRTC_SUCCESS)
            entry_failure(&plain, guilty_entry(input, a->log), o);
        attempt_free(&plain, toolkit);
    }
    steal_log(a, o);
}

static int describe(const struct helper_toolkit *toolkit, const struct compile_input *input, const struct attempt *a,
                    const struct cubin *cubin, struct compiled *c, struct helper_outcome *o)
{
    struct error e;

    for (unsigned i = 0; i < input->n_entries; i++) {
        struct compiled_entry *entry = &c->entries[i];
        const char *lowered = attempt_lowered(a, toolkit, input->entries[i]);

        if (!lowered) {
            entry_failure(a, input->entries[i], o);
            return -1;
        }
        entry->name = strdup(input->entries[i]);
        entry->lowered = strdup(lowered);
        if (!entry->name || !entry->lowered)
            return no_memory(o);
        if (cubin_describe(cubin, entry, &e) < 0) {
            if (e.code == ERROR_LIMIT_EXCEEDED)
                return fail(o, e.code, FAILURE_SOURCE, e.message);
            entry_failure(a, input->entries[i], o);
            return -1;
        }
    }
    return 0;
}

static int assemble(const struct helper_toolkit *toolkit, const struct compile_input *input, struct attempt *a,
                    struct compiled *c, struct helper_outcome *o)
{
    struct cubin cubin;
    struct error e;

    c->entries = calloc(input->n_entries, sizeof(*c->entries));
    if (!c->entries)
        return no_memory(o);
    c->n_entries = input->n_entries;
    if (cubin_open(&cubin, a->image, a->image_size, &e) < 0)
        return fail(o, e.code, FAILURE_SOURCE, e.message);
    if (describe(toolkit, input, a, &cubin, c, o) < 0)
        return -1;
    snprintf(c->arch, sizeof(c->arch), "%s", input->arch);
    snprintf(c->compiler, sizeof(c->compiler), "NVRTC %d.%d", toolkit->nvrtc.major, toolkit->nvrtc.minor);
    c->compile_us = a->us;
    c->log = a->log;
    c->image = a->image;
    c->image_size = a->image_size;
    a->log = NULL;
    a->image = NULL;
    if (!c->log)
        c->log = calloc(1, 1);
    return c->log ? 0 : no_memory(o);
}

static void conclude(const struct helper_toolkit *toolkit, const struct compile_input *input, struct attempt *a,
                     struct helper_outcome *o)
{
    struct compiled *c;

    if (a->result != NVRTC_SUCCESS) {
        compile_failure(toolkit, input, a, o);
        return;
    }
    c = compiled_new();
    if (!c)
        no_memory(o);
    else if (assemble(toolkit, input, a, c, o) < 0)
        compiled_unref(c);
    else
        o->compiled = c;
}

/* A kernel that is missing may have been taken for the host's code, for a fault that the first attempt names. */
static void add_log(struct helper_outcome *o, const struct attempt *first)
{
    static const char title[] = "With the code for the host:\n";
    size_t size = o->log_length + sizeof(title) + first->log_length;
    char *both = o->log && first->log && size <= COMPILED_MAX_LOG ? malloc(size) : NULL;

    if (!both)
        return;
    o->log_length = (size_t)snprintf(both, size, "%s%s%s", o->log, title, first->log);
    free(o->log);
    o->log = both;
}

static unsigned count_errors(const struct attempt *a)
{
    static const char error[] = "error:";
    unsigned n = 0;

    for (const char *at = a->log; at && (at = strstr(at, error)); at += sizeof(error) - 1)
        n++;
    return n;
}

/* Whether the trees are what they were when the daemon began: the keys of its cache stand for that. */
static bool trees_are_unchanged(const struct helper_toolkit *toolkit)
{
    uint64_t stamp = 0;

    for (unsigned i = toolkit->n_includes - toolkit->n_trees; i < toolkit->n_includes; i++)
        stamp = include_tree_mix(stamp, include_tree_stamp(toolkit->includes[i]));
    return stamp == toolkit->stamp;
}

/* Host code that was kept, since a kernel might use it, is given up where it does not compile. `attempt` becomes the
 * last one, unless all that this one complains of comes from what was given up. */
static void drop_faulty(const struct helper_toolkit *toolkit, struct adapted *adapted,
                        const struct compile_input *input, struct attempt *attempt)
{
    struct attempt last = *attempt, next;
    unsigned rounds = 0;

    while (rounds < MAX_ROUNDS && last.result == NVRTC_COMPILATION && adapted_drop_faulty(adapted, input, last.log)) {
        attempt_run(&next, toolkit, &adapted->input, true);
        next.us += last.us;
        if (rounds++)
            attempt_free(&last, toolkit);
        last = next;
    }
    if (!rounds)
        return;
    if (last.result == NVRTC_COMPILATION && !misses_entry(&last) && !attempts_share_error(&last, attempt)) {
        attempt_free(&last, toolkit);
        return;
    }
    attempt_free(attempt, toolkit);
    *attempt = last;
}

/* A source that compiles is never changed. Any other is tried once more as nvcc would take it. When both attempts fail,
 * the messages are those of the attempt with fewer errors: errors of the first, such as an unknown `uint`, may be no
 * faults of the source. */
void helper_compile(const struct helper_toolkit *toolkit, const struct compile_input *input,
                    struct helper_outcome *ret_outcome)
{
    struct attempt first, second;
    struct adapted adapted;

    *ret_outcome = (struct helper_outcome){0};
    if (!trees_are_unchanged(toolkit)) {
        fail(ret_outcome, ERROR_UNSUPPORTED, FAILURE_SOURCE,
             "headers of kernels.include_extra have changed since the daemon began: it must be started anew");
        return;
    }
    attempt_run(&first, toolkit, input, true);
    if (first.result != NVRTC_COMPILATION || adapted_make(&adapted, input) < 0) {
        conclude(toolkit, input, &first, ret_outcome);
        goto free_first;
    }
    attempt_run(&second, toolkit, &adapted.input, true);
    second.us += first.us;
    drop_faulty(toolkit, &adapted, input, &second);
    if (second.result == NVRTC_SUCCESS || adapted.changed || count_errors(&second) <= count_errors(&first))
        conclude(toolkit, &adapted.input, &second, ret_outcome);
    else
        conclude(toolkit, input, &first, ret_outcome);
    if (adapted.changed && !ret_outcome->compiled && ret_outcome->failure.reason == FAILURE_ENTRY)
        add_log(ret_outcome, &first);
    attempt_free(&second, toolkit);
    adapted_free(&adapted);
free_first:
    attempt_free(&first, toolkit);
}

static void outcome_free(struct helper_outcome *outcome)
{
    compiled_unref(outcome->compiled);
    free(outcome->log);
}

int helper_warm(const struct helper_toolkit *toolkit, struct error *e)
{
    static const char source[] = "extern \"C\" __global__ void warm(float *c, const float *a, int n)\n"
                                 "{\n"
                                 "    __shared__ float s[256];\n"
                                 "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                 "    s[threadIdx.x] = i < n ? sqrtf(a[i]) : 0.f;\n"
                                 "    __syncthreads();\n"
                                 "    for (int k = i; k < n; k += gridDim.x * blockDim.x)\n"
                                 "        c[k] = fmaf(a[k], s[k & 255], expf(s[0]));\n"
                                 "}\n";
    static const char *const entries[] = {"warm"};
    /* The oldest that this NVRTC and those to come may know. */
    static const char *const archs[] = {"sm_90", "sm_80", "sm_75", "sm_100", "sm_120"};
    struct compile_input input = {
        .name = "warm.cu", .source = source, .length = sizeof(source) - 1, .entries = entries, .n_entries = 1};
    struct helper_outcome o = {0};

    for (unsigned i = 0; i < sizeof(archs) / sizeof(archs[0]) && !o.compiled; i++) {
        outcome_free(&o);
        input.arch = archs[i];
        helper_compile(toolkit, &input, &o);
    }
    if (!o.compiled)
        error_set(e, ERROR_UNSUPPORTED, "NVRTC does not work here: %.200s", o.failure.message);
    else
        e->code = ERROR_NONE;
    outcome_free(&o);
    return e->code ? -1 : 0;
}
