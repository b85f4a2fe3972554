/* Making buffers known to a connection. */
#ifndef KOPS_CLIENT_REGISTER_H
#define KOPS_CLIENT_REGISTER_H

#include "buffer.h"

/* Makes the buffer known to the present connection. Lock held, may drop it while it waits. */
enum kops_code buffer_ensure(struct kops_buffer *b, uint64_t deadline, struct kops_error *e);

#endif
