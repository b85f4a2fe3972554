import os

import ray

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
how = {"object_store_memory": 80 << 20, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
ray.init("local", num_cpus=2, num_gpus=0, **how)
