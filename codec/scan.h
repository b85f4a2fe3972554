/* Finds where a MessagePack value ends, and refuses what must not reach a decoder, before anything is allocated:
 * values nested too deep, lengths or counts that the size limit leaves no room for, ext types, the
 * unused type byte 0xc1.
 *
 * The scan can be resumed: give it the same buffer with more bytes and it goes on where it stopped, so a value that
 * trickles in costs time linear in its length. Thread: any; the struct belongs to the caller. */
#ifndef KOPS_CODEC_SCAN_H
#define KOPS_CODEC_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { SCAN_MAX_DEPTH = 16 };

enum scan_result {
    SCAN_COMPLETE, /* s->position is the value's length */
    SCAN_MORE,     /* no violation so far; bytes are missing */
    SCAN_PAUSED,   /* no violation so far; scan_some() has done its part */
    SCAN_TOO_LONG, /* the value cannot fit into the size limit */
    SCAN_TOO_DEEP, /* more than SCAN_MAX_DEPTH arrays and maps inside each other */
    SCAN_INVALID   /* 0xc1 or an ext type */
};

struct scan {
    size_t position;                    /* bytes of the value that were understood … */
    uint64_t values;                    /* … and how many values, arrays and maps included */
    uint32_t remaining[SCAN_MAX_DEPTH]; /* values still to come, by depth */
    unsigned depth;
};

/* Starts a new value. */
void scan_reset(struct scan *s);

/* Scans on; `data` starts at the value's first byte, `length` bytes are there, the value may have at most `limit`. */
enum scan_result scan_value(struct scan *s, const unsigned char *data, size_t length, size_t limit);

/* The same, but no more than `values` values now: SCAN_PAUSED when there is more to scan. */
enum scan_result scan_some(struct scan *s, const unsigned char *data, size_t length, size_t limit, uint64_t values);

/* A sentence for people. */
const char *scan_result_text(enum scan_result result);

#endif
