#include "executor/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/log.h"

extern char **environ;

void arguments_write(const struct backend_config *config, char texts[ARGUMENTS_CONFIG][ARGUMENT_BYTES])
{
    snprintf(texts[0], ARGUMENT_BYTES, "driver=%s", config->cuda_driver ? config->cuda_driver : "");
    snprintf(texts[1], ARGUMENT_BYTES, "blaslt=%s", config->cuda_blaslt ? config->cuda_blaslt : "");
    snprintf(texts[2], ARGUMENT_BYTES, "cupti=%s", config->cuda_cupti ? config->cuda_cupti : "");
    snprintf(texts[3], ARGUMENT_BYTES, "workspace=%llu", (unsigned long long)config->cuda_workspace_bytes);
    snprintf(texts[4], ARGUMENT_BYTES, "repack=%llu", (unsigned long long)config->cuda_repack_bytes);
    snprintf(texts[5], ARGUMENT_BYTES, "debug=%d", log_enabled(LOG_LEVEL_DEBUG));
}

bool arguments_read(char *argument, char *value, struct backend_config *config)
{
    if (!strcmp(argument, "driver"))
        config->cuda_driver = *value ? value : NULL;
    else if (!strcmp(argument, "blaslt"))
        config->cuda_blaslt = *value ? value : NULL;
    else if (!strcmp(argument, "cupti"))
        config->cuda_cupti = *value ? value : NULL;
    else if (!strcmp(argument, "workspace"))
        config->cuda_workspace_bytes = strtoull(value, NULL, 10);
    else if (!strcmp(argument, "repack"))
        config->cuda_repack_bytes = strtoull(value, NULL, 10);
    else if (!strcmp(argument, "debug"))
        log_set_level(*value == '1' ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
    else
        return false;
    return true;
}

/* Variables that executors of users and the tuner have of their own. A directory without MPS is necessary, because the
 * driver also looks into one of its own. */
static char no_mps[] = "CUDA_MPS_PIPE_DIRECTORY=/nonexistent", channels[] = "CUDA_DEVICE_MAX_CONNECTIONS=2";
static char *const own_of_user[] = {no_mps, channels};

static bool is_among(const char *variable, char *const *own, unsigned n_own)
{
    for (unsigned i = 0; i < n_own; i++)
        if (strncmp(variable, own[i], (size_t)(strchr(own[i], '=') - own[i]) + 1) == 0)
            return true;
    return false;
}

char **arguments_environment(bool common)
{
    const unsigned n_own = common ? 0 : sizeof(own_of_user) / sizeof(own_of_user[0]);
    unsigned n = 0, kept = 0;
    char **list;

    while (environ[n])
        n++;
    list = calloc(n + n_own + 1, sizeof(*list));
    if (!list)
        return NULL;
    for (unsigned i = 0; i < n; i++)
        if (!is_among(environ[i], own_of_user, n_own))
            list[kept++] = environ[i];
    for (unsigned i = 0; i < n_own; i++)
        list[kept++] = own_of_user[i];
    return list;
}
