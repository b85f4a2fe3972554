/* What a device's speed depends on: one line of text, or JSON. */
#ifndef KOPS_CTL_CONDITIONS_H
#define KOPS_CTL_CONDITIONS_H

#include <stddef.h>

#include <kops/kops.h>

/* "1980 -> 1590 of 1980 MHz, memory 3201 of 3201 MHz, 36 -> 57 C, 79 -> 692 of 700 W", and a warning where the clocks
 * were kept down, or changed. `before` may be `after`, of a device at one time. "" where the daemon is too old to tell.
 */
const char *conditions_text(const struct kops_conditions *before, const struct kops_conditions *after, char *into,
                            size_t size);

/* A map. */
void conditions_json(const char *key, const struct kops_conditions *c);

/* The readings around a measurement; both NULL where there is none, or the daemon cannot tell. */
struct conditions_pair {
    struct kops_conditions *before, *after;
};

/* Reads the device, NULL: the default one, into *ret; NULL where the daemon cannot tell. */
void conditions_read(kops_client *client, const char *device, struct kops_conditions **ret);
void conditions_pair_print(const struct conditions_pair *pair);
void conditions_pair_json(const struct conditions_pair *pair);
void conditions_pair_free(struct conditions_pair *pair);

#endif
