/* Texts of others and large numbers, for people. */
#ifndef KOPS_CTL_TEXT_H
#define KOPS_CTL_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Copies a text that a client chose, cut to fit: bytes that a terminal could take for a command become `?`. Returns
 * `into`. */
const char *text_clean(const char *text, char *into, size_t size);

/* A number of bytes with three digits and a unit: "1.50 GiB". Returns `into`. */
const char *text_bytes(uint64_t bytes, char *into, size_t size);

/* "950", "1.2k", "3.4M", for rates. Returns `into`. */
const char *text_rate(double per_s, char *into, size_t size);

/* A number of microseconds, with three digits or all before the point; "-" for NAN. Returns `into`. */
const char *text_us(double us, char *into, size_t size);

/* "1.21x", how many times faster `us` is than `usual_us`; "-" where one is NAN. Returns `into`. */
const char *text_gain(double usual_us, double us, char *into, size_t size);

/* "25 %", "2.5 %" of a share of 1; "-" for NAN. Returns `into`. */
const char *text_percent(double share, char *into, size_t size);

/* "42 s", "3 min 10 s", "2 h 5 min", "3 d 4 h". Returns `into`. */
const char *text_duration(double seconds, char *into, size_t size);

/* A user's name; the number where there is none. Returns `into`. */
const char *text_user(int64_t uid, char *into, size_t size);
/* "[NAME]" of an identity; of "" the user's name. */
const char *text_owner(int64_t uid, const char *identity, char *into, size_t size);

#endif
