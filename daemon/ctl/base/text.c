#include "text.h"

#include <math.h>
#include <pwd.h>
#include <stdio.h>

const char *text_clean(const char *text, char *into, size_t size)
{
    size_t n = 0;

    for (; *text && n + 1 < size; text++)
        into[n++] = *text >= 0x20 && *text < 0x7f ? *text : '?'; /* bytes from 0x80 on can be commands, too */
    into[n] = 0;
    return into;
}

const char *text_bytes(uint64_t bytes, char *into, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;

    for (; value >= 1000 && unit < 6; unit++)
        value /= 1024;
    snprintf(into, size,
             unit && value < 9.995   ? "%.2f %s"
             : unit && value < 99.95 ? "%.1f %s"
                                     : "%.0f %s",
             value, units[unit]);
    return into;
}

const char *text_rate(double per_s, char *into, size_t size)
{
    static const char units[] = {0, 'k', 'M', 'G'};
    unsigned unit = 0;

    if (isnan(per_s)) {
        snprintf(into, size, "-");
        return into;
    }
    for (; per_s >= 999.5 && unit < 3; unit++)
        per_s /= 1000;
    snprintf(into, size, per_s < 9.95 && per_s > 0 ? "%.1f%.1s" : "%.0f%.1s", per_s, &units[unit]);
    return into;
}

const char *text_us(double us, char *into, size_t size)
{
    if (isnan(us))
        snprintf(into, size, "-");
    else
        snprintf(into, size, us < 10 ? "%.2f" : us < 1000 ? "%.1f" : "%.0f", us);
    return into;
}

const char *text_gain(double usual_us, double us, char *into, size_t size)
{
    if (isnan(usual_us) || isnan(us) || us <= 0)
        snprintf(into, size, "-");
    else
        snprintf(into, size, "%.2fx", usual_us / us);
    return into;
}

const char *text_percent(double share, char *into, size_t size)
{
    if (isnan(share))
        snprintf(into, size, "-");
    else
        snprintf(into, size, "%.*f %%", share > 0 && share < 0.0995, share * 100);
    return into;
}

const char *text_duration(double seconds, char *into, size_t size)
{
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;

    if (s < 60)
        snprintf(into, size, "%llu s", (unsigned long long)s);
    else if (s < 3600)
        snprintf(into, size, "%llu min %llu s", (unsigned long long)s / 60, (unsigned long long)s % 60);
    else if (s < 86400)
        snprintf(into, size, "%llu h %llu min", (unsigned long long)s / 3600, (unsigned long long)s / 60 % 60);
    else
        snprintf(into, size, "%llu d %llu h", (unsigned long long)s / 86400, (unsigned long long)s / 3600 % 24);
    return into;
}

const char *text_user(int64_t uid, char *into, size_t size)
{
    const struct passwd *user = uid >= 0 ? getpwuid((uid_t)uid) : NULL;

    if (user)
        return text_clean(user->pw_name, into, size);
    snprintf(into, size, "%lld", (long long)uid);
    return into;
}

const char *text_owner(int64_t uid, const char *identity, char *into, size_t size)
{
    char name[80];

    if (!*identity)
        return text_user(uid, into, size);
    snprintf(into, size, "[%s]", text_clean(identity, name, sizeof(name)));
    return into;
}
