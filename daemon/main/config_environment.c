/* Settings from the environment. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "main/config.h"
#include "main/settings.h"

static const char prefix[] = "KOPSD_";

/* KOPSD_<SECTION>_<KEY> */
static void variable_of(const struct setting *s, char name[64])
{
    snprintf(name, 64, "%s%s_%s", prefix, s->section, s->key);
    for (char *p = name; *p; p++)
        *p = (char)toupper((unsigned char)*p);
}

static bool is_setting(const char *variable, size_t length)
{
    char name[64];

    for (unsigned i = 0; i < n_settings; i++) {
        variable_of(&settings[i], name);
        if (strlen(name) == length && !strncmp(name, variable, length))
            return true;
    }
    return false;
}

static int unknown(const char *variable, size_t length, struct error *e)
{
    const struct setting *nearest;
    const char *instead;
    char given[128], name[64];

    snprintf(given, sizeof(given), "%.*s", (int)(length < 100 ? length : 100), variable);
    instead = config_gone(given + strlen(prefix));
    if (instead)
        return error_set(e, ERROR_UNKNOWN_KEY, "the environment has %s, which is no setting any more: unset it; %s",
                         given, instead);
    nearest = config_nearest(given + strlen(prefix));
    if (nearest && strchr(nearest->section, '*')) /* no variable names such a section */
        nearest = NULL;
    if (nearest)
        variable_of(nearest, name);
    return error_set(e, ERROR_UNKNOWN_KEY,
                     "the environment has %s, which is no setting; %s%s%sunset it, or see kopsd --print-config", given,
                     nearest ? "did you mean " : "", nearest ? name : "", nearest ? "? Otherwise " : "");
}

int config_read_environment(struct config *c, struct error *e)
{
    const char *value = getenv("KOPS_SOCKET");

    if (value && *value && config_set(c, "server.socket", value, e) < 0)
        return -1;
    for (char **at = environ; at && *at; at++) {
        const size_t length = strcspn(*at, "=");

        if (!strncmp(*at, prefix, strlen(prefix)) && !is_setting(*at, length))
            return unknown(*at, length, e);
    }
    for (unsigned i = 0; i < n_settings; i++) {
        char variable[64], name[64];

        variable_of(&settings[i], variable);
        snprintf(name, sizeof(name), "%s.%s", settings[i].section, settings[i].key);
        value = getenv(variable);
        if (value && config_set(c, name, value, e) < 0)
            return -1;
    }
    return 0;
}
