/* Receiving bytes and descriptors from a client's socket. */
#ifndef KOPS_RPC_SOCKET_H
#define KOPS_RPC_SOCKET_H

#include "rpc/input.h"

enum rpc_receive {
    RPC_RECEIVED,
    RPC_WOULD_BLOCK,
    RPC_END,      /* end of file, or the peer is gone */
    RPC_VIOLATION /* *e is set */
};

/* Receives once into `in`. *ret_full: the socket may hold more. */
enum rpc_receive rpc_socket_receive(int socket, struct rpc_input *in, bool *ret_full, struct error *e);

#endif
