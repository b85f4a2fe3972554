/* The server's settings, made of the configuration's. Texts are the configuration's. Thread: any. */
#ifndef KOPS_MAIN_SERVER_SETTINGS_H
#define KOPS_MAIN_SERVER_SETTINGS_H

#include "main/config.h"
#include "server/base/config.h"

struct server_config server_config_of(const struct config *c);
struct quota_limits quota_limits_of(const struct config *c);

#endif
