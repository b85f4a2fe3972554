/* From a scanned value's bytes to msgpack-c's objects, in place of its parser, which takes bytes as they come and pays
 * for it. Thread: the owner's. */
#ifndef KOPS_RPC_DECODE_H
#define KOPS_RPC_DECODE_H

#include <msgpack.h>

/* `data` must be a value that scan_value() found complete: nothing is checked again. Strings and bins point into it,
 * the elements of arrays and maps are in `zone`. Returns the value's end, or NULL when memory is short. */
const unsigned char *rpc_decode(msgpack_zone *zone, const unsigned char *data, msgpack_object *ret);

#endif
