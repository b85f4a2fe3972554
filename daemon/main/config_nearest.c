#include <ctype.h>
#include <string.h>

#include "main/config.h"
#include "main/settings.h"

enum { NAME_MAX_LENGTH = 80 };

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
