/* Checks of an input, apart from its options. */
#include "compile/options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* The length of the UTF-8 sequence at `at`, of at most `left` bytes; 0 when it is none. */
static size_t sequence(const unsigned char *at, size_t left)
{
    unsigned long code;
    size_t n;

    if (at[0] < 0x80)
        return 1;
    n = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || n > left)
        return 0;
    code = at[0] & (0x7fU >> n);
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    if ((n == 3 && code < 0x800) || (n == 4 && code < 0x10000) || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    return n;
}

bool options_text_valid(const char *text, size_t length)
{
    const unsigned char *at = (const unsigned char *)text;

    for (size_t i = 0, n; i < length; i += n) {
        n = sequence(at + i, length - i);
        if (!n || (at[i] < 0x20 && at[i] != '\t') || at[i] == 0x7f)
            return false;
    }
    return true;
}

static int too_many(struct error *e, const char *key, uint64_t limit, uint64_t value)
{
    error_at(e, ERROR_LIMIT_EXCEEDED, "", key, "more than this daemon takes");
    error_detail_number(e, "limit", (int64_t)limit);
    return error_detail_number(e, "value", (int64_t)value);
}

/* C++ names and the operators that template arguments need; no quote, no backslash, nothing that ends a statement. */
static bool entry_valid(const char *entry)
{
    size_t n = strlen(entry);

    if (!n || n > OPTIONS_MAX_ENTRY || !options_text_valid(entry, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)entry[i]) && (unsigned char)entry[i] < 0x80 &&
            !strchr("_$ <>(),:&*+-/%!~^|=?.'[]{}", entry[i]))
            return false;
    return true;
}

static int check_entries(const struct compile_input *input, struct error *e)
{
    char key[32];

    if (!input->n_entries)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "entries", "name at least one kernel of the source");
    if (input->n_entries > COMPILED_MAX_ENTRIES)
        return too_many(e, "entries", COMPILED_MAX_ENTRIES, input->n_entries);
    for (unsigned i = 0; i < input->n_entries; i++) {
        snprintf(key, sizeof(key), "entries[%u]", i);
        if (!entry_valid(input->entries[i]))
            return error_at(e, ERROR_INVALID_ARGUMENT, "", key,
                            "must be the name of a kernel, or an instantiation like scale<float, 4>");
        for (unsigned k = 0; k < i; k++)
            if (!strcmp(input->entries[i], input->entries[k]))
                return error_at(e, ERROR_INVALID_ARGUMENT, "", key, "is there twice");
    }
    return 0;
}

static bool file_name_valid(const char *name)
{
    size_t n = strlen(name);

    return n && n <= OPTIONS_MAX_NAME && options_text_valid(name, n);
}

static int check_files(const struct compile_input *input, uint64_t source_bytes, struct error *e)
{
    uint64_t bytes = input->length;
    char key[32];

    if (input->n_files > OPTIONS_MAX_FILES)
        return too_many(e, "files", OPTIONS_MAX_FILES, input->n_files);
    if (memchr(input->source, 0, input->length))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "source", "holds a zero byte");
    for (unsigned i = 0; i < input->n_files; i++) {
        const struct compile_file *f = &input->files[i];

        snprintf(key, sizeof(key), "files[%u]", i);
        if (!file_name_valid(f->name))
            return error_at(e, ERROR_INVALID_ARGUMENT, "", key,
                            "its name must be 1 to 255 bytes of UTF-8 without control characters");
        if (memchr(f->text, 0, f->length))
            return error_at(e, ERROR_INVALID_ARGUMENT, "", key, "holds a zero byte");
        for (unsigned k = 0; k < i; k++)
            if (!strcmp(f->name, input->files[k].name))
                return error_at(e, ERROR_INVALID_ARGUMENT, "", key, "its name is there twice");
        bytes += f->length; /* each is shorter than a message, so the sum cannot overflow */
    }
    return bytes > source_bytes ? too_many(e, "source", source_bytes, bytes) : 0;
}

/* sm_90, sm_90a, sm_103f: a real architecture, since the result is machine code for one device. */
static bool arch_valid(const char *arch)
{
    size_t n;

    if (strncmp(arch, "sm_", 3) != 0)
        return false;
    n = strspn(arch + 3, "0123456789");
    arch += 3 + n;
    return n >= 2 && n <= 3 && (!*arch || ((*arch == 'a' || *arch == 'f') && !arch[1]));
}

int options_check_input(const struct compile_input *input, uint64_t source_bytes, struct error *e)
{
    if (!arch_valid(input->arch))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "arch", "must be an architecture like sm_90a");
    if (!file_name_valid(input->name))
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "name",
                        "must be 1 to 255 bytes of UTF-8 without control characters");
    if (input->name[0] == '-') /* the compiler would take it for an option */
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "name", "must not begin with -");
    /* Sizes first: nothing is read of a source that is too long. */
    if (input->length > source_bytes)
        return too_many(e, "source", source_bytes, input->length);
    if (check_files(input, source_bytes, e) < 0)
        return -1;
    return check_entries(input, e);
}
