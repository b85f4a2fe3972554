/* Writes a scanned value again, through the codec's reader and writer: the value in its shortest form. */
#ifndef KOPS_TESTS_REWRITE_H
#define KOPS_TESTS_REWRITE_H

#include <stdlib.h>

#include "codec/read.h"
#include "codec/write.h"

static inline void rewrite_item(unsigned char **to, const unsigned char *at, const struct codec_item *item)
{
    switch (item->type) {
    case CODEC_NIL:
        codec_write_nil(to);
        break;
    case CODEC_BOOL:
        codec_write_bool(to, item->b);
        break;
    case CODEC_UINT:
        codec_write_uint64(to, item->u);
        break;
    case CODEC_NEGATIVE:
        codec_write_int64(to, item->i);
        break;
    case CODEC_FLOAT:
        if (codec_heads[*at].width == sizeof(float))
            codec_write_float(to, (float)item->f);
        else
            codec_write_double(to, item->f);
        break;
    case CODEC_STR:
        codec_write_text(to, item->text, item->count);
        break;
    case CODEC_BIN:
        codec_write_binary(to, item->text, item->count);
        break;
    case CODEC_ARRAY:
        codec_write_array(to, item->count);
        break;
    case CODEC_MAP:
        codec_write_map(to, item->count);
        break;
    case CODEC_REFUSED: /* the scan lets none through */
        abort();
    }
}

/* *to moves behind the bytes that were written, which are never more than the value's own. Returns the value's end. */
static inline const unsigned char *rewrite(unsigned char **to, const unsigned char *at)
{
    struct codec_item item;

    for (uint64_t left = 1; left; left--) {
        codec_read(at, &item);
        rewrite_item(to, at, &item);
        if (item.type == CODEC_ARRAY)
            left += item.count;
        else if (item.type == CODEC_MAP)
            left += 2 * (uint64_t)item.count;
        at = item.next;
    }
    return at;
}

#endif
