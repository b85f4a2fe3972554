#include "compile/helper.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compile/cubin.h"
#include "compile/toolkit.h"
#include "source/hostcode.h"
#include "util/clock.h"

struct attempt {
    const struct helper_toolkit *toolkit;
    const struct compile_input *input;
    void *program;
    int result; /* enum nvrtc_result */
    char *log;  /* owned; NULL without memory */
    size_t log_length;
    unsigned char *image; /* owned */
    size_t image_size;
    double us;
};

/* A source as nvcc would take it, for a compiler of device code alone: without host code, and with the headers that
 * nvcc includes by itself. */
struct adapted {
    struct compile_input input;
    struct hostcode_text *texts; /* the source, then the files */
    struct compile_file *files;
    const char **options;
    unsigned char **faults; /* an array for each text */
    bool changed;           /* also the texts were changed */
};

enum { ADDED_OPTIONS = 3, MAX_ADAPTED = 1 << 20 /* bytes of text: its tokens take many times that */ };

/* The names of symbols go to the binary as they are; all else is an expression that the compiler resolves. */
static bool is_symbol(const char *entry)
{
    return !strncmp(entry, "_Z", 2);
}

static bool has_file(const struct compile_input *input, const char *name)
{
    for (unsigned i = 0; i < input->n_files; i++)
        if (!strcmp(input->files[i].name, name))
            return true;
    return false;
}

/* A toolkit of several packages need not have all libraries. */
static bool toolkit_has(const struct helper_toolkit *toolkit, const char *name)
{
    char path[1024];
    int fd = -1;

    for (unsigned i = 0; i < toolkit->n_includes && fd < 0; i++) {
        snprintf(path, sizeof(path), "%s/%s", toolkit->includes[i], name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static int create(struct attempt *a)
{
    const struct compile_input *input = a->input;
    unsigned n_builtin, n_fallback, n = 0;
    const struct compile_file *builtin = headers_builtin(&n_builtin, &n_fallback);
    const char **names = calloc((size_t)input->n_files + n_builtin + 1, 2 * sizeof(*names)), **texts;

    if (!names)
        return NVRTC_OUT_OF_MEMORY;
    texts = names + input->n_files + n_builtin + 1;
    for (unsigned i = 0; i < input->n_files; i++, n++) {
        names[n] = input->files[i].name;
        texts[n] = input->files[i].text;
    }
    for (unsigned i = 0; i < n_builtin; i++) {
        if (has_file(input, builtin[i].name) ||
            (i >= n_builtin - n_fallback && toolkit_has(a->toolkit, builtin[i].name)))
            continue;
        names[n] = builtin[i].name;
        texts[n++] = builtin[i].text;
    }
    a->result = a->toolkit->nvrtc.CreateProgram(&a->program, input->source, input->name, (int)n, texts, names);
    free(names);
    return a->result;
}

static int compile(const struct attempt *a)
{
    const struct helper_toolkit *toolkit = a->toolkit;
    const struct compile_input *input = a->input;
    const char *options[COMPILER_MAX_OPTIONS + ADDED_OPTIONS + TOOLKIT_MAX_INCLUDES + 1];
    char arch[64], includes[TOOLKIT_MAX_INCLUDES][1024];
    int n = 0;

    snprintf(arch, sizeof(arch), "--gpu-architecture=%.40s", input->arch);
    options[n++] = arch;
    for (unsigned i = 0; i < input->n_options; i++)
        options[n++] = input->options[i];
    for (unsigned i = 0; i < toolkit->n_includes; i++) {
        snprintf(includes[i], sizeof(includes[i]), "--include-path=%s", toolkit->includes[i]);
        options[n++] = includes[i];
    }
    return toolkit->nvrtc.CompileProgram(a->program, n, options);
}

/* Why a file could not be opened says whether there is one, which is not for the source's author to know. */
static void withhold_reasons(char *log)
{
    static const char reason[] = ": Permission denied";

    for (char *at = log; (at = strstr(at, reason));)
        if (at > log && at[-1] == '"' && at[strlen(reason)] == '\n')
            memmove(at, at + strlen(reason), strlen(at + strlen(reason)) + 1);
        else
            at += strlen(reason);
}

/* Names a folder that is reached through a descriptor by its path. Without memory the log stays. */
static void show_folder(struct attempt *a, const char *used, const char *shown)
{
    const size_t n_used = strlen(used), n_shown = strlen(shown);
    size_t count = 0;
    char *renamed, *to;
    const char *from = a->log;

    for (const char *at = a->log; (at = strstr(at, used)); at += n_used)
        count++;
    renamed = count ? malloc(strlen(a->log) + count * n_shown + 1) : NULL;
    if (!renamed)
        return;
    to = renamed;
    for (const char *at; (at = strstr(from, used)); from = at + n_used) {
        to = (char *)mempcpy(to, from, (size_t)(at - from));
        to = (char *)mempcpy(to, shown, n_shown);
    }
    memcpy(to, from, strlen(from) + 1);
    free(a->log);
    a->log = renamed;
}

static void fetch_log(struct attempt *a)
{
    const struct helper_toolkit *toolkit = a->toolkit;
    const struct nvrtc *n = &toolkit->nvrtc;
    size_t size = 0;

    if (n->GetProgramLogSize(a->program, &size) != NVRTC_SUCCESS || !size)
        return;
    a->log = malloc(size);
    if (!a->log || n->GetProgramLog(a->program, a->log) != NVRTC_SUCCESS)
        return;
    a->log[size - 1] = '\0';
    withhold_reasons(a->log);
    for (unsigned i = 0; i < toolkit->n_includes; i++)
        if (toolkit->shown[i] && toolkit->includes[i] != toolkit->shown[i])
            show_folder(a, toolkit->includes[i], toolkit->shown[i]);
    a->log_length = strlen(a->log);
    text_clean(a->log, a->log_length);
    if (a->log_length > COMPILED_MAX_LOG) {
        a->log_length = COMPILED_MAX_LOG;
        while (a->log_length && (a->log[a->log_length] & 0xc0) == 0x80)
            a->log_length--; /* no half characters */
        a->log[a->log_length] = '\0';
    }
}

static int fetch_image(const struct nvrtc *n, struct attempt *a)
{
    if (n->GetCUBINSize(a->program, &a->image_size) != NVRTC_SUCCESS || !a->image_size)
        return NVRTC_NO_BINARY;
    if (a->image_size > COMPILED_MAX_IMAGE)
        return NVRTC_OUT_OF_MEMORY;
    a->image = malloc(a->image_size);
    return a->image ? n->GetCUBIN(a->program, (char *)a->image) : NVRTC_OUT_OF_MEMORY;
}

static void attempt_run(struct attempt *a, const struct helper_toolkit *toolkit, const struct compile_input *input,
                        bool resolve)
{
    uint64_t begin = clock_now_ns();

    *a = (struct attempt){.toolkit = toolkit, .input = input, .result = NVRTC_SUCCESS};
    if (create(a) != NVRTC_SUCCESS)
        return;
    for (unsigned i = 0; resolve && i < input->n_entries && a->result == NVRTC_SUCCESS; i++)
        if (!is_symbol(input->entries[i]))
            a->result = toolkit->nvrtc.AddNameExpression(a->program, input->entries[i]);
    if (a->result == NVRTC_SUCCESS)
        a->result = compile(a);
    fetch_log(a);
    if (a->result == NVRTC_SUCCESS)
        a->result = fetch_image(&toolkit->nvrtc, a);
    a->us = clock_us_between(begin, clock_now_ns());
}

static void attempt_free(struct attempt *a)
{
    if (a->program)
        a->toolkit->nvrtc.DestroyProgram(&a->program);
    free(a->log);
    free(a->image);
}

static const char *attempt_lowered(const struct attempt *a, const char *entry)
{
    const char *lowered = NULL;

    if (is_symbol(entry))
        return entry;
    if (a->toolkit->nvrtc.GetLoweredName(a->program, entry, &lowered) != NVRTC_SUCCESS || !lowered || !*lowered)
        return NULL;
    return lowered;
}

/* ---- a source as nvcc would take it ---- */

static int blank(struct adapted *a, const struct compile_input *input)
{
    if (hostcode_blank(a->texts, input->n_files + 1) < 0)
        return -1;
    for (unsigned i = 0; i <= input->n_files; i++)
        a->changed = a->changed || a->texts[i].changed;
    return 0;
}

static void use_texts(struct adapted *a, const struct compile_input *input)
{
    bool names_std = strstr(a->texts[0].blanked, "std::");

    for (unsigned i = 0; i < input->n_files; i++) {
        a->files[i] = (struct compile_file){input->files[i].name, a->texts[i + 1].blanked, input->files[i].length};
        names_std = names_std || strstr(a->texts[i + 1].blanked, "std::");
    }
    a->input.source = a->texts[0].blanked;
    /* The last option is for the C++ library, whose headers take longer than the others. */
    a->input.n_options = input->n_options + ADDED_OPTIONS - !names_std;
}

static void adapted_free(struct adapted *a)
{
    for (unsigned i = 0; a->texts && a->faults && i <= a->input.n_files; i++) {
        free(a->texts[i].blanked);
        free(a->faults[i]);
    }
    free(a->texts);
    free(a->faults);
    free(a->files);
    free(a->options);
}

static int adapted_make(struct adapted *a, const struct compile_input *input)
{
    const unsigned n_texts = input->n_files + 1, n = input->n_options;
    size_t size = input->length;

    *a = (struct adapted){.input = *input,
                          .texts = calloc(n_texts, sizeof(*a->texts)),
                          .faults = calloc(n_texts, sizeof(*a->faults)),
                          .files = calloc(n_texts, sizeof(*a->files)),
                          .options = calloc((size_t)n + ADDED_OPTIONS, sizeof(*a->options))};
    for (unsigned i = 0; i < input->n_files; i++)
        size += input->files[i].length;
    if (size > MAX_ADAPTED || !a->texts || !a->faults || !a->files || !a->options)
        goto free_adapted;
    a->texts[0] = (struct hostcode_text){.text = input->source, .length = input->length};
    for (unsigned i = 0; i < input->n_files; i++)
        a->texts[i + 1] = (struct hostcode_text){.text = input->files[i].text, .length = input->files[i].length};
    if (blank(a, input) < 0)
        goto free_adapted;
    for (unsigned i = 0; i < n; i++)
        a->options[i] = input->options[i];
    a->options[n] = "-default-device"; /* functions that are constexpr, and constants, have no mark */
    a->options[n + 1] = "-include=kops/prelude.h";
    a->options[n + 2] = "-include=kops/prelude_std.h";
    use_texts(a, input);
    a->input.files = a->files;
    a->input.options = a->options;
    return 0;

free_adapted:
    adapted_free(a);
    return -1;
}

/* The next line of a log that reports an error of the source, such as `kernel.cu(3): error: …`; NULL behind the last.
 */
static const char *next_error(const char *log)
{
    for (const char *line = log; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        const char *message = strstr(line, "): "), *end = strchrnul(line, '\n');

        if (message && message < end &&
            (!strncmp(message + 3, "error", 5) || !strncmp(message + 3, "catastrophic error", 18)))
            return line;
    }
    return NULL;
}

static int mark_line(struct adapted *a, unsigned i, unsigned long line)
{
    const char *text = a->texts[i].text, *end = text + a->texts[i].length, *at = text;

    for (; line > 1 && at && at < end; line--) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at ? at + 1 : NULL;
    }
    if (!at || at >= end || !line)
        return 0;
    if (!a->faults[i])
        a->faults[i] = calloc(1, a->texts[i].length);
    if (!a->faults[i])
        return -1;
    a->texts[i].faults = a->faults[i];
    text = memchr(at, '\n', (size_t)(end - at));
    memset(a->faults[i] + (at - a->texts[i].text), 1, (size_t)((text ? text : end) - at));
    return 0;
}

/* `error`: a line of a log, which begins with a file's name and a line's number. */
static int mark_fault(struct adapted *a, const struct compile_input *input, const char *error)
{
    const char *digits = strstr(error, "): ");
    size_t name;

    while (digits > error && digits[-1] != '(')
        digits--;
    if (digits == error)
        return 0;
    name = (size_t)(digits - 1 - error);
    for (unsigned i = 0; i <= input->n_files; i++) {
        const char *known = i ? input->files[i - 1].name : input->name;

        if (strlen(known) == name && !memcmp(known, error, name))
            return mark_line(a, i, strtoul(digits, NULL, 10));
    }
    return 0;
}

static bool adapted_drop_faulty(struct adapted *a, const struct compile_input *input, const char *log)
{
    struct hostcode_text *old = calloc((size_t)input->n_files + 1, sizeof(*old));
    bool dropped = false;
    int r = old ? 0 : -1;

    for (const char *at = r < 0 ? NULL : next_error(log); at && !r; at = next_error(strchrnul(at, '\n')))
        r = mark_fault(a, input, at);
    if (!r) {
        memcpy(old, a->texts, ((size_t)input->n_files + 1) * sizeof(*old));
        if (blank(a, input) < 0) /* the old ones stay */
            memcpy(a->texts, old, ((size_t)input->n_files + 1) * sizeof(*old));
        else
            for (unsigned i = 0; i <= input->n_files; i++) {
                dropped = dropped || memcmp(old[i].blanked, a->texts[i].blanked, old[i].length);
                free(old[i].blanked);
            }
        use_texts(a, input);
    }
    free(old);
    return dropped;
}

static bool attempts_share_error(const struct attempt *a, const struct attempt *b)
{
    for (const char *at = next_error(a->log); at; at = next_error(strchrnul(at, '\n')))
        for (const char *other = next_error(b->log); other; other = next_error(strchrnul(other, '\n')))
            if (!strncmp(at, other, (size_t)(strchrnul(at, '\n') + 1 - at)))
                return true;
    return false;
}

/* ---- the outcome ---- */

enum { MAX_ROUNDS = 8 /* Host code is given up so many times: each finds what the one before could not reach. */ };

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
    text_clean(into, strlen(into)); /* the line may end within a character */
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

static const char *guilty_entry(const struct compile_input *input, const char *log)
{
    static const char mark[] = "#pragma nv_mangled_name ";

    for (unsigned i = 0; i < input->n_entries; i++)
        for (const char *at = log; (at = strstr(at, mark)); at += sizeof(mark) - 1) {
            const size_t n = strlen(input->entries[i]);
            const char *name = at + sizeof(mark) - 1;

            if (!strncmp(name, input->entries[i], n) && (name[n] == '\n' || !name[n]))
                return input->entries[i];
        }
    return input->entries[0];
}

static bool misses_entry(const struct attempt *a)
{
    return a->result == NVRTC_COMPILATION && a->log && strstr(a->log, "__nv_name_map(");
}

/* A source that compiles when no entries are asked for is not at fault: the entries are. */
static void compile_failure(struct attempt *a, struct helper_outcome *o)
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
                 a->input->arch);
        fail(o, ERROR_INVALID_ARGUMENT, FAILURE_SOURCE, message);
        return;
    }
    first_error(a->log, message, sizeof(message));
    fail(o, a->result == NVRTC_INVALID_OPTION ? ERROR_INVALID_ARGUMENT : ERROR_COMPILE_FAILED, FAILURE_SOURCE,
         *message ? message : "the compiler failed without a word");
    if (misses_entry(a)) {
        attempt_run(&plain, a->toolkit, a->input, false);
        if (plain.result == NVRTC_SUCCESS)
            entry_failure(&plain, guilty_entry(a->input, a->log), o);
        attempt_free(&plain);
    }
    steal_log(a, o);
}

static int describe(const struct attempt *a, const struct cubin *cubin, struct compiled *c, struct helper_outcome *o)
{
    const struct compile_input *input = a->input;
    struct error e;

    for (unsigned i = 0; i < input->n_entries; i++) {
        struct compiled_entry *entry = &c->entries[i];
        const char *lowered = attempt_lowered(a, a->input->entries[i]);

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

static int assemble(struct attempt *a, struct compiled *c, struct helper_outcome *o)
{
    const struct compile_input *input = a->input;
    struct cubin cubin;
    struct error e;

    c->entries = calloc(input->n_entries, sizeof(*c->entries));
    if (!c->entries)
        return no_memory(o);
    c->n_entries = input->n_entries;
    if (cubin_open(&cubin, a->image, a->image_size, &e) < 0)
        return fail(o, e.code, FAILURE_SOURCE, e.message);
    if (describe(a, &cubin, c, o) < 0)
        return -1;
    snprintf(c->arch, sizeof(c->arch), "%s", input->arch);
    snprintf(c->compiler, sizeof(c->compiler), "NVRTC %d.%d", a->toolkit->nvrtc.major, a->toolkit->nvrtc.minor);
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

static void conclude(struct attempt *a, struct helper_outcome *o)
{
    struct compiled *c;

    if (a->result != NVRTC_SUCCESS) {
        compile_failure(a, o);
        return;
    }
    c = compiled_new();
    if (!c)
        no_memory(o);
    else if (assemble(a, c, o) < 0)
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
            attempt_free(&last);
        last = next;
    }
    if (!rounds)
        return;
    if (last.result == NVRTC_COMPILATION && !misses_entry(&last) && !attempts_share_error(&last, attempt)) {
        attempt_free(&last);
        return;
    }
    attempt_free(attempt);
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
    /* The keys of the daemon's cache stand for the trees as they were when it began. */
    if (toolkit_stamp(toolkit->includes + toolkit->n_includes - toolkit->n_trees, toolkit->n_trees) != toolkit->stamp) {
        fail(ret_outcome, ERROR_UNSUPPORTED, FAILURE_SOURCE,
             "headers of kernels.include_extra have changed since the daemon began: it must be started anew");
        return;
    }
    attempt_run(&first, toolkit, input, true);
    if (first.result != NVRTC_COMPILATION || adapted_make(&adapted, input) < 0) {
        conclude(&first, ret_outcome);
        goto free_first;
    }
    attempt_run(&second, toolkit, &adapted.input, true);
    second.us += first.us;
    drop_faulty(toolkit, &adapted, input, &second);
    if (second.result == NVRTC_SUCCESS || adapted.changed || count_errors(&second) <= count_errors(&first))
        conclude(&second, ret_outcome);
    else
        conclude(&first, ret_outcome);
    if (adapted.changed && !ret_outcome->compiled && ret_outcome->failure.reason == FAILURE_ENTRY)
        add_log(ret_outcome, &first);
    attempt_free(&second);
    adapted_free(&adapted);
free_first:
    attempt_free(&first);
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
        free(o.log);
        input.arch = archs[i];
        helper_compile(toolkit, &input, &o);
    }
    if (!o.compiled)
        error_set(e, ERROR_UNSUPPORTED, "NVRTC does not work here: %.200s", o.failure.message);
    else
        e->code = ERROR_NONE;
    compiled_unref(o.compiled);
    free(o.log);
    return e->code ? -1 : 0;
}
