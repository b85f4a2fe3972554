#include "compile/helper.h"

#include <stdlib.h>
#include <string.h>

bool compile_helper_wanted(int argc, char **argv)
{
    return argc > 1 && !strcmp(argv[1], HELPER_ARGUMENT);
}

static const char *value_of(const char *argument, const char *key)
{
    size_t n = strlen(key);

    return !strncmp(argument, key, n) && argument[n] == '=' ? argument + n + 1 : NULL;
}

static void set_number(struct helper_settings *s, const char *argument)
{
    int sandbox = -1, alone = 0;
    const struct {
        const char *key;
        int *as_int;
        unsigned *as_unsigned;
    } numbers[] = {{"sandbox", &sandbox, NULL},         {"parent", &s->parent, NULL},
                   {"memory", NULL, &s->memory_mib},    {"time", NULL, &s->time_s},
                   {"processes", NULL, &s->processes},  {"alone", &alone, NULL},
                   {"trees", NULL, &s->toolkit.n_trees}};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const char *value = value_of(argument, numbers[i].key);

        if (value && numbers[i].as_int)
            *numbers[i].as_int = (int)strtol(value, NULL, 10);
        else if (value)
            *numbers[i].as_unsigned = (unsigned)strtoul(value, NULL, 10);
    }
    if (sandbox >= 0)
        s->sandbox = (enum compiler_sandbox)sandbox;
    if (alone)
        s->alone = true;
}

int helper_settings_parse(int argc, char **argv, struct helper_settings *ret_settings)
{
    struct helper_settings s = {.sandbox = COMPILER_SANDBOX_REQUIRED, .processes = 1};

    for (int i = 2; i < argc; i++) {
        const char *value;

        if ((value = value_of(argv[i], "nvrtc")))
            s.nvrtc = value;
        else if ((value = value_of(argv[i], "user")))
            s.user = value;
        else if ((value = value_of(argv[i], "include")) && s.toolkit.n_includes < HELPER_MAX_INCLUDES)
            s.toolkit.includes[s.toolkit.n_includes++] = value;
        else if ((value = value_of(argv[i], "stamp")))
            s.toolkit.stamp = strtoull(value, NULL, 16);
        else
            set_number(&s, argv[i]);
    }
    if (s.toolkit.n_trees > s.toolkit.n_includes || !s.nvrtc || !s.parent || !s.memory_mib || !s.time_s)
        return -1;
    *ret_settings = s;
    return 0;
}
