/* What the commands for administrators share. */
#ifndef KOPS_CTL_ADMIN_H
#define KOPS_CTL_ADMIN_H

#include "ctl.h"

ctl_command ctl_clients, ctl_top, ctl_drain, ctl_metrics;

/* Members of an open JSON object. */
void admin_client_json(const struct kops_client_info *c);
void admin_user_json(const struct kops_user_info *u);
void admin_device_json(const struct kops_device_load *d);

/* One word. */
const char *admin_client_state(const struct kops_client_info *c);

/* Seconds, whole or not, from `min` to `max`. */
bool admin_parse_seconds(const char *text, double min, double max, double *ret);

#endif
