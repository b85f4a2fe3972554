/* The source that `kopsctl compile` and `kopsctl launch` are given: its files, options and entries. */
#ifndef KOPS_CTL_COMPILE_H
#define KOPS_CTL_COMPILE_H

#include "base/ctl.h"

enum { SOURCE_MAX = 64 };

struct source {
    struct kops_source s; /* for the compiler; points into this struct */
    const char *options[SOURCE_MAX], *entries[SOURCE_MAX];
    struct kops_file files[SOURCE_MAX];
};

/* Rows of an option table. */
#define SOURCE_OPTIONS(source)                                                                                         \
    {"--option", 'o', OPTION_TAKE, source, .take = source_take_option},                                                \
        {"--arch", 'a', OPTION_TEXT, &(source)->s.arch}, {"--device", 'd', OPTION_TEXT, &(source)->s.device},          \
    {                                                                                                                  \
        "--include-file", 'i', OPTION_TAKE, source, .take = source_take_file                                           \
    }
#define SOURCE_USAGE                                                                                                   \
    "  -o, --option OPTION    of the compiler, such as -DN=4, -std=c++17, --use_fast_math; may be repeated\n"          \
    "  -a, --arch ARCH        such as sm_90a; default: the device's; required where there is no GPU\n"                 \
    "  -d, --device DEVICE    UUID, or index of `kopsctl info`; default: the first GPU\n"                              \
    "  -i, --include-file F   another file that the source includes as \"F\"; NAME=F: as \"NAME\"; may be repeated\n"

/* Take an option (OPTION_TAKE) into a struct source. */
enum ctl_exit source_take_option(void *source, const char *value);
enum ctl_exit source_take_file(void *source, const char *value);
enum ctl_exit source_add_entry(void *source, const char *entry);

/* Reads the source file, and the files beside it that it includes in quotes. */
enum ctl_exit source_read(struct source *s, const char *path);

/* Reads a whole file, NUL-terminated and owned by the caller. NULL: the error was printed. */
char *source_read_file(const char *path, size_t *ret_size);

/* Compiles; prints the compiler's output on a failure. */
enum ctl_exit source_compile(struct ctl *ctl, const struct source *s, kops_module **ret_module);

/* Writes a module as a map. */
void module_json(const char *key, const struct kops_module_info *info);

#endif
