#include "compile/helper_attempt.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compile/headers.h"
#include "compile/hostcode.h"
#include "util/clock.h"

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

/* The client's files, and those of ours that it has none of. */
static int create(const struct helper_toolkit *toolkit, const struct compile_input *input, struct attempt *a)
{
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
        if (has_file(input, builtin[i].name) || (i >= n_builtin - n_fallback && toolkit_has(toolkit, builtin[i].name)))
            continue;
        names[n] = builtin[i].name;
        texts[n++] = builtin[i].text;
    }
    a->result = toolkit->nvrtc.CreateProgram(&a->program, input->source, input->name, (int)n, texts, names);
    free(names);
    return a->result;
}

static int compile(const struct helper_toolkit *toolkit, const struct compile_input *input, struct attempt *a)
{
    const char *options[COMPILER_MAX_OPTIONS + ADDED_OPTIONS + HELPER_MAX_INCLUDES + 1];
    char arch[64], includes[HELPER_MAX_INCLUDES][1024];
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

/* A folder of headers that is reached through a descriptor is shown by its own name. Without memory the log stays. */
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

static void fetch_log(const struct helper_toolkit *toolkit, struct attempt *a)
{
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

void attempt_run(struct attempt *a, const struct helper_toolkit *toolkit, const struct compile_input *input,
                 bool resolve)
{
    uint64_t begin = clock_now_ns();

    *a = (struct attempt){.result = NVRTC_SUCCESS};
    if (create(toolkit, input, a) != NVRTC_SUCCESS)
        return;
    for (unsigned i = 0; resolve && i < input->n_entries && a->result == NVRTC_SUCCESS; i++)
        if (!is_symbol(input->entries[i]))
            a->result = toolkit->nvrtc.AddNameExpression(a->program, input->entries[i]);
    if (a->result == NVRTC_SUCCESS)
        a->result = compile(toolkit, input, a);
    fetch_log(toolkit, a);
    if (a->result == NVRTC_SUCCESS)
        a->result = fetch_image(&toolkit->nvrtc, a);
    a->us = clock_us_between(begin, clock_now_ns());
}

void attempt_free(struct attempt *a, const struct helper_toolkit *toolkit)
{
    if (a->program)
        toolkit->nvrtc.DestroyProgram(&a->program);
    free(a->log);
    free(a->image);
}

const char *attempt_lowered(const struct attempt *a, const struct helper_toolkit *toolkit, const char *entry)
{
    const char *lowered = NULL;

    if (is_symbol(entry))
        return entry;
    if (toolkit->nvrtc.GetLoweredName(a->program, entry, &lowered) != NVRTC_SUCCESS || !lowered || !*lowered)
        return NULL;
    return lowered;
}

static int blank(struct adapted *a, const struct compile_input *input)
{
    if (hostcode_blank(a->texts, input->n_files + 1) < 0)
        return -1;
    for (unsigned i = 0; i <= input->n_files; i++)
        a->changed = a->changed || a->texts[i].changed;
    return 0;
}

static int begin(struct adapted *a, const struct compile_input *input)
{
    size_t size = input->length;

    for (unsigned i = 0; i < input->n_files; i++)
        size += input->files[i].length;
    a->texts = calloc((size_t)input->n_files + 1, sizeof(*a->texts));
    a->faults = calloc((size_t)input->n_files + 1, sizeof(*a->faults));
    if (size > MAX_ADAPTED || !a->texts || !a->faults)
        return -1;
    a->texts[0] = (struct hostcode_text){.text = input->source, .length = input->length};
    for (unsigned i = 0; i < input->n_files; i++)
        a->texts[i + 1] = (struct hostcode_text){.text = input->files[i].text, .length = input->files[i].length};
    return blank(a, input);
}

/* Whether the blanked texts name something of the C++ library: its headers take longer than the others. */
static bool names_std(const struct adapted *a, unsigned n_texts)
{
    for (unsigned i = 0; i < n_texts; i++)
        if (strstr(a->texts[i].blanked, "std::"))
            return true;
    return false;
}

static void use_texts(struct adapted *a, const struct compile_input *input)
{
    for (unsigned i = 0; i < input->n_files; i++)
        a->files[i] = (struct compile_file){input->files[i].name, a->texts[i + 1].blanked, input->files[i].length};
    a->input.source = a->texts[0].blanked;
    a->input.n_options =
        input->n_options + ADDED_OPTIONS - !names_std(a, input->n_files + 1); /* the last one is for it */
}

/* Functions that are constexpr, and constants, have no mark: a kernel may use them. */
static int replace(struct adapted *a, const struct compile_input *input)
{
    unsigned n = input->n_options;

    a->files = calloc((size_t)input->n_files + 1, sizeof(*a->files));
    a->options = calloc((size_t)n + ADDED_OPTIONS, sizeof(*a->options));
    if (!a->files || !a->options)
        return -1;
    for (unsigned i = 0; i < n; i++)
        a->options[i] = input->options[i];
    a->options[n++] = "-default-device";
    a->options[n++] = "-include=kops/prelude.h";
    a->options[n] = "-include=kops/prelude_std.h";
    use_texts(a, input);
    a->input.files = a->files;
    a->input.options = a->options;
    return 0;
}

int adapted_make(struct adapted *a, const struct compile_input *input)
{
    *a = (struct adapted){.input = *input};
    if (begin(a, input) < 0 || replace(a, input) < 0) {
        adapted_free(a);
        return -1;
    }
    return 0;
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

/* Marks a line of a text as faulty. */
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

/* `error` is at the line of a log that begins with a file's name and a line's number. */
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

bool adapted_drop_faulty(struct adapted *a, const struct compile_input *input, const char *log)
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

bool attempts_share_error(const struct attempt *a, const struct attempt *b)
{
    for (const char *at = next_error(a->log); at; at = next_error(strchrnul(at, '\n')))
        for (const char *other = next_error(b->log); other; other = next_error(strchrnul(other, '\n')))
            if (!strncmp(at, other, (size_t)(strchrnul(at, '\n') + 1 - at)))
                return true;
    return false;
}

void adapted_free(struct adapted *a)
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
