/* Finds the end of a MessagePack value, and refuses what must not reach a decoder, before anything is allocated: values
 * nested too deep, lengths or counts beyond the size limit, ext types, the unused type byte 0xc1.
 *
 * A scan resumes: called again with more bytes in the same buffer, it goes on where it stopped. So a value that
 * arrives in pieces costs time linear in its length. Thread: any; the struct belongs to the caller. */
#ifndef KOPS_CODEC_SCAN_H
#define KOPS_CODEC_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { SCAN_MAX_DEPTH = 16 };

enum scan_result {
    SCAN_COMPLETE, /* s->position is the value's length */
    SCAN_MORE,     /* no violation so far; bytes are missing */
    SCAN_PAUSED,   /* no violation so far; scan_some() has read `values` values */
    SCAN_TOO_LONG, /* the value cannot fit into the size limit */
    SCAN_TOO_DEEP, /* more than SCAN_MAX_DEPTH arrays and maps inside each other */
    SCAN_INVALID   /* 0xc1 or an ext type */
};

struct scan {
    size_t position;                    /* bytes that were scanned */
    uint64_t values;                    /* values that were scanned, arrays and maps included */
    uint32_t remaining[SCAN_MAX_DEPTH]; /* values still to come, by depth */
    unsigned depth;
};

void scan_reset(struct scan *s);

/* Goes on with the scan. `data`: `length` bytes from the value's first byte on. `limit`: bytes of the longest value. */
enum scan_result scan_value(struct scan *s, const unsigned char *data, size_t length, size_t limit);

/* As scan_value(), but returns SCAN_PAUSED after `values` values where there is more to scan. */
enum scan_result scan_some(struct scan *s, const unsigned char *data, size_t length, size_t limit, uint64_t values);

/* Describes the result in a sentence. */
const char *scan_result_text(enum scan_result result);

#endif
