// The threads that something is shared by.
#ifndef KOPS_HOST_SCOPE_H
#define KOPS_HOST_SCOPE_H

namespace cuda
{
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
}

#endif
