/* Connections, users and devices, for `clients` and `top`. */
#ifndef KOPS_CTL_VIEW_CLIENTS_H
#define KOPS_CTL_VIEW_CLIENTS_H

#include <kops/admin.h>

/* Members of an open JSON object. */
void view_client_json(const struct kops_client_info *c);
void view_device_json(const struct kops_device_load *d);
void view_users_json(const struct kops_clients *s);

/* One word. */
const char *view_client_state(const struct kops_client_info *c);

#endif
