#include <ctype.h>
#include <string.h>

#include "main/config.h"
#include "main/settings.h"

enum { NAME_MAX_LENGTH = 80 };

/* Settings of older files, and what there is instead. */
static const struct {
    const char *name, *instead;
} gone[] = {
    {"server.group", "the group is that of server.user"},
    {"server.backlog", "up to 4096 connections wait to be accepted, as far as net.core.somaxconn allows"},
    {"limits.stuck_reader_s", "set limits.peer_timeout_s"},
    {"limits.partial_message_s", "set limits.peer_timeout_s"},
    {"limits.buffers", "set quota.buffers, for all connections of a user"},
    {"limits.programs", "a connection has at most 1024"},
    {"limits.kernels", "a connection has at most 4096; set quota.daemon_mib, for all connections of a user"},
    {"limits.source_bytes", "set limits.message_bytes, of which a source may have 95 percent"},
    {"limits.inline_mappings", "a connection keeps 1024; set quota.mappings, for all connections of a user"},
    {"limits.output_bytes", "set quota.daemon_mib, for all connections of a user"},
    {"cuda.workspace_bytes", "a stream has 32 MiB"},
    {"executors.spin_us", "executors poll for 100 microseconds"},
    {"host.enabled", "set server.backend"},
    {"cuda.enabled", "set server.backend"},
    {"cuda.nvml", "it is libnvidia-ml.so.1, where the system or LD_LIBRARY_PATH has it"},
    {"cache.memory_mib", "256 MiB are kept in memory"},
    {"kernels.user", "compilers of root's daemon run as nobody"},
    {"kernels.user_kernels_group", "set kernels.user_kernels, and kernels.hand_out, to @GROUP"},
    {"quota.program_mib", "the quota daemon_mib is for that"},
    {"quota.waiting_mib", "the quota daemon_mib is for that"},
    {"quota.kernel_mib", "the quota daemon_mib is for that"},
    {"kernels.sandbox", "set server.sandbox"},
    {"executors.sandbox", "set server.sandbox"},
};

/* Case does not count, and "." is "_", so that names in the environment are compared, too. */
static int plain(char c)
{
    return c == '.' ? '_' : tolower((unsigned char)c);
}

/* How many characters must be put in, left out or replaced to make one name of the other; both have at most
 * NAME_MAX_LENGTH. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[NAME_MAX_LENGTH + 1];
    const size_t length = strlen(b);

    for (size_t j = 0; j <= length; j++)
        row[j] = (unsigned)j;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];

        row[0]++;
        for (size_t j = 0; j < length; j++) {
            const unsigned replaced = diagonal + (plain(a[i]) != plain(b[j]));
            const unsigned other = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;

            diagonal = row[j + 1];
            row[j + 1] = replaced < other ? replaced : other;
        }
    }
    return row[length];
}

const char *config_gone(const char *name)
{
    const char *quota = strstr(name, ".quota_"); /* a socket's */
    char own[NAME_MAX_LENGTH + 1];

    if (quota) {
        snprintf(own, sizeof(own), "quota.%s", quota + strlen(".quota_"));
        name = own;
    }
    for (unsigned i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        if (strlen(name) == strlen(gone[i].name) && !distance(name, gone[i].name))
            return gone[i].instead;
    return NULL;
}

const struct setting *config_nearest(const char *name)
{
    const struct setting *nearest = NULL;
    unsigned least = (unsigned)strlen(name) / 3 + 1;

    if (strlen(name) > NAME_MAX_LENGTH)
        return NULL;
    for (unsigned i = 0; i < n_settings; i++) {
        char full[NAME_MAX_LENGTH + 1];
        unsigned d;

        snprintf(full, sizeof(full), "%s.%s", settings[i].section, settings[i].key);
        d = distance(name, full);
        if (d < least) {
            least = d;
            nearest = &settings[i];
        }
    }
    return nearest;
}
